// What the pages of clusters, services and others have in common: a list of things, and the page of one.
import type { ComponentChildren } from "preact";
import { ErrorBox, Status } from "./basics";

interface TableProps {
  label: string;
  /** The heads of the columns: "#name" for numbers, "(name)" for one that only screen readers need. */
  heads: string[];
  tall?: boolean;
  children: ComponentChildren;
}

/** A table that is scrolled sideways where it is too wide. */
export function Table({ label, heads, tall = false, children }: TableProps) {
  return (
    <div class={tall ? "scroll tall" : "scroll"} tabIndex={0} role="region" aria-label={label}>
      <table class="plain">
        <thead>
          <tr>
            {heads.map((head) => (
              <th key={head} class={head.startsWith("#") ? "num" : undefined}>
                {head.startsWith("(") ? <span class="hidden">{head.slice(1, -1)}</span> : head.replace(/^#(?=.)/, "")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** A page with a heading and a table of things, or what to do while there are none. */
interface ListProps {
  title: string;
  error: Error | null;
  empty: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}

export function ListPage({ title, error, empty, actions, children }: ListProps) {
  return (
    <>
      <div class="head">
        <h1>{title}</h1>
        {actions && <div class="actions">{actions}</div>}
      </div>
      <ErrorBox error={error} />
      {empty || children}
    </>
  );
}

/** The page of one thing; `status` is null until it is loaded. */
interface ThingProps {
  name: string;
  error: Error | null;
  actions: ComponentChildren;
  status: string | null;
  parts: string[];
  message?: string | null;
  isBad?: boolean;
  children: ComponentChildren;
}

export function ThingPage({ name, error, actions, status, parts, message, isBad = true, children }: ThingProps) {
  return (
    <>
      <div class="head">
        <h1>{name}</h1>
        {actions && <div class="actions">{actions}</div>}
      </div>
      <ErrorBox error={error} />
      {status !== null && (
        <>
          <p>
            <Status status={status} />
            {parts.map((part) => (
              <span key={part}>
                {" "}
                <span class="part">{part}</span>
              </span>
            ))}
          </p>
          {message && <p class={isBad ? "message bad" : "message"}>{message}</p>}
        </>
      )}
      {children}
    </>
  );
}

export function Fact({ name, wide = false, children }: { name: string; wide?: boolean; children: ComponentChildren }) {
  return (
    <div class={wide ? "wide" : undefined}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
