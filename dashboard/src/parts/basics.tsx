// Small parts that all pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../core/api";
import { clockTime, duration, seconds } from "../core/format";
import { now } from "../core/live";

/** Sign, tone and word of a status: shape and text differ, not only the color. Any other is bad. */
const STATUSES: Record<string, [string, string]> = {};
const SIGNS: [string, string, string][] = [
  ["●", "good", "RUNNING UP READY"],
  ["◔", "busy", "STARTING INIT SETTING_UP REPLICA_INIT PROVISIONING"],
  ["↻", "busy", "RECOVERING NOT_READY"],
  ["○", "wait", "PENDING STOPPED NO_REPLICA"],
  ["◌", "wait", "CANCELLING AUTOSTOPPING SHUTTING_DOWN"],
  ["⊘", "wait", "CANCELLED DOWN TERMINATED"],
  ["✓", "done", "SUCCEEDED"],
];
for (const [sign, tone, statuses] of SIGNS) for (const status of statuses.split(" ")) STATUSES[status] = [sign, tone];

export function statusSign(status: string): string {
  return (STATUSES[status] ?? ["✕", "bad"])[0];
}

export function Status({ status }: { status: string }) {
  const [sign, tone] = STATUSES[status] ?? ["✕", "bad"];
  return (
    <span class={`status ${tone}`}>
      <span class="sign" aria-hidden="true">
        {sign}
      </span>
      {status.toLowerCase().replaceAll("_", " ")}
    </span>
  );
}

export function isTerminal(status: string): boolean {
  return status === "SUCCEEDED" || status === "CANCELLED" || status.startsWith("FAILED");
}

/** `3m ago`, with the exact time and UTC as its tip. */
export function Ago({ at, suffix = " ago" }: { at: string | null; suffix?: string }) {
  if (!at) return null;
  return (
    <time dateTime={at} title={`${clockTime(at, true)} · ${at.slice(0, 19).replace("T", " ")} UTC`}>
      {age(now.value - seconds(at))}
      {suffix}
    </time>
  );
}

/** Coarse, so that a list does not change every second. */
function age(value: number): string {
  if (value < 60) return `${Math.max(0, Math.floor(value))}s`;
  if (value < 3600) return `${Math.floor(value / 60)}m`;
  if (value < 86400) return duration(Math.floor(value / 60) * 60);
  return duration(Math.floor(value / 3600) * 3600);
}

/** Parameters of calls, which no user has written: the message names the thing. */
const PARAMETERS = ["job_id", "node", "ids"];

export function ErrorBox({ error }: { error: Error | null }) {
  if (!error) return null;
  const { fix, where } = error as Partial<ApiError>;
  return (
    <div class="error" role="alert">
      <strong>{where && !PARAMETERS.includes(where) ? `${where}: ` : ""}</strong>
      <span class="pre">{error.message}</span>
      {fix && <div class="fix">{fix}</div>}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** A modal dialog. `onClose` is called when it is dismissed. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    <dialog
      ref={element}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === element.current && element.current?.close()}
    >
      <div class="dialog">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

/** A dialog that runs an action and shows its error. `act` may close it by returning. */
export function Confirm(props: {
  title: string;
  verb: string;
  danger?: boolean;
  onClose: () => void;
  act: () => Promise<void>;
  children: ComponentChildren;
}) {
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await props.act();
      props.onClose();
    } catch (problem) {
      setError(problem as Error);
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={submit}>
        {props.children}
        <ErrorBox error={error} />
        <div class="buttons">
          <button type="button" onClick={props.onClose}>
            Back
          </button>
          <button type="submit" class={props.danger ? "danger" : "primary"} disabled={busy}>
            {props.verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" onClick={copy}>
      {done ? "Copied" : label}
    </button>
  );
}

/** A horizontal bar of a share, with its text beside it. */
export function Meter({ share, label }: { share: number; label: string }) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return (
    <svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect class="track" width="100" height="6" rx="1" />
      <rect class="fill" width={width} height="6" rx="1" />
    </svg>
  );
}
