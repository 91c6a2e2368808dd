// The audit log: who did what.
import { useRef } from "preact/hooks";
import { clockTime } from "../core/format";
import { useLive } from "../core/live";
import { address, go, withQuery } from "../core/router";
import { Empty, ErrorBox } from "../parts/basics";
import type { AuditEntry } from "../types";

const PAGE_SIZE = 100;
const KINDS = ["", "job.", "cluster.", "node.", "user.", "token.", "session.", "controller."];

export function AuditLog() {
  const { query } = address.value;
  const asked = new URLSearchParams({ limit: String(PAGE_SIZE) });
  for (const name of ["user", "action", "outcome", "before"]) if (query.get(name)) asked.set(name, query.get(name) as string);
  const { data, error, reload } = useLive<AuditEntry[]>(`/audit?${asked}`, () => false, 2000, query.get("before") ? 0 : 15_000);
  const timer = useRef(0);
  const kind = query.get("action") ?? "";
  const search = (user: string) => {
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => go(withQuery({ user: user.trim(), before: "" }), true), 300);
  };
  return (
    <section aria-label="Audit log">
      <div class="filters">
        <div class="chips" role="group" aria-label="Kinds">
          {KINDS.map((name) => (
            <a key={name} class="chip" href={withQuery({ action: name, before: "" })} aria-current={kind === name ? "true" : undefined}>
              {name ? name.slice(0, -1) : "All"}
            </a>
          ))}
        </div>
        <label class="check">
          <input
            type="checkbox"
            checked={query.get("outcome") === "denied"}
            onChange={(event) => go(withQuery({ outcome: event.currentTarget.checked ? "denied" : "", before: "" }), true)}
          />
          Only what was denied
        </label>
        <input
          type="search"
          data-search
          class="search narrow"
          aria-label="User"
          placeholder="User"
          defaultValue={query.get("user") ?? ""}
          onInput={(event) => search(event.currentTarget.value)}
        />
        <button type="button" onClick={reload}>
          Read again
        </button>
      </div>
      <ErrorBox error={error} />
      {data && !data.length && <Empty title="No entries" />}
      {data && data.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Entries">
          <table class="plain">
            <thead>
              <tr>
                <th>Time</th>
                <th>User</th>
                <th>What</th>
                <th>To what</th>
                <th>Outcome</th>
                <th>Details</th>
                <th>Token</th>
                <th>From</th>
              </tr>
            </thead>
            <tbody>
              {data.map((row) => (
                <Entry key={row.id} row={row} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <nav class="pager" aria-label="Pages">
        {query.get("before") && <a href={withQuery({ before: "" })}>Newest</a>}
        {data?.length === PAGE_SIZE && <a href={withQuery({ before: String(data[PAGE_SIZE - 1]?.id) })}>Older</a>}
      </nav>
    </section>
  );
}

function Entry({ row }: { row: AuditEntry }) {
  const denied = row.outcome === "denied";
  const job = /^job (\d+)$/.exec(row.target)?.[1];
  return (
    <tr>
      <td>{clockTime(row.at, true)}</td>
      <td>{row.user || <span class="muted">nobody</span>}</td>
      <td>
        <code>{row.action}</code>
      </td>
      <td>{job ? <a href={`/jobs/${job}`}>{row.target}</a> : row.target}</td>
      <td>
        <span class={`status ${denied ? "bad" : "done"}`}>
          <span class="sign" aria-hidden="true">
            {denied ? "✕" : "✓"}
          </span>
          {row.outcome}
        </span>
      </td>
      <td class="prose">
        {Object.entries(row.detail)
          .filter(([, value]) => value !== null && value !== "")
          .map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)
          .join(", ")}
      </td>
      <td>{row.token && <code>{row.token}</code>}</td>
      <td>{row.address}</td>
    </tr>
  );
}
