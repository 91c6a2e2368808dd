// What the attempts of a job went through, from its attempts and its timeline.
import { seconds } from "../core/format";
import type { Attempt, JobDetail, TimelineEntry } from "../types";

export type Phase = "asked" | "booting" | "setup" | "running" | "draining" | "ending";

export interface Segment {
  phase: Phase;
  from: number;
  to: number;
}

export interface Mark {
  kind: "notice" | "preempted" | "lost" | "durable" | "refused" | "failed";
  at: number;
  text: string;
}

/** Times are epoch seconds. */
export interface Bar {
  attempt: Attempt;
  key: string;
  row: string;
  from: number;
  to: number;
  isOver: boolean;
  segments: Segment[];
  marks: Mark[];
  /** The newest step that was durable when the attempt ended, and the oldest. */
  step: number | null;
  /** Seconds of work that were done again after the loss; null if unknown, because no checkpoint is reported. */
  lostSeconds: number | null;
  /** Where the lost work begins; it ends where the run ended. */
  lostFrom: number | null;
  runFrom: number | null;
  runTo: number | null;
  refusal: string | null;
}

const LOSSES = new Set(["PREEMPTED", "PREEMPTION_NOTICE", "MACHINE_STOPPED", "MACHINE_CRASHED", "UNREACHABLE", "MOUNT_LOST", "MOVED"]);
const PREEMPTIONS = new Set(["PREEMPTED", "PREEMPTION_NOTICE"]);

export function rowName(attempt: Attempt): string {
  return `${attempt.cloud} ${attempt.zone} ${attempt.market}`;
}

export function attemptKey(of: { task_index: number | null; generation: number | null }): string {
  return `${of.task_index ?? 0}.${of.generation ?? 0}`;
}

export function bars(job: JobDetail): Bar[] {
  const now = seconds(job.now);
  const events = new Map<string, TimelineEntry[]>();
  for (const entry of job.timeline) {
    if (entry.generation === null) continue;
    const key = attemptKey(entry);
    const known = events.get(key);
    if (known) known.push(entry);
    else events.set(key, [entry]);
  }
  const reportsCheckpoints = job.timeline.some((entry) => entry.kind === "checkpoint.durable");
  return job.attempts.map((attempt) => bar(attempt, events.get(attemptKey(attempt)) ?? [], now, reportsCheckpoints));
}

function bar(attempt: Attempt, entries: TimelineEntry[], now: number, reportsCheckpoints: boolean): Bar {
  const at = (kind: string) => {
    const entry = entries.find((one) => one.kind === kind);
    return entry ? seconds(entry.at) : null;
  };
  const time = (iso: string | null) => (iso === null ? null : seconds(iso));
  const [running, stopped, gone] = [time(attempt.running_at), time(attempt.stopped_at), time(attempt.gone_at)];
  const refusal = entries.find((entry) => entry.kind === "attempt.refused" || entry.kind === "attempt.withdrawn");
  const lostAt = at("attempt.lost");
  const runTo = running === null ? null : (stopped ?? gone ?? now);
  const end = gone ?? (refusal ? seconds(refusal.at) : now);
  const cuts: [Phase, number | null][] = [
    ["asked", seconds(attempt.requested_at)],
    ["booting", at("attempt.launched")],
    ["setup", at("attempt.setting_up")],
    ["running", running],
    ["draining", lostAt !== null && running !== null ? lostAt : attempt.state === "DRAINING" ? now : null],
    ["ending", stopped],
  ];
  const known = cuts.filter((cut): cut is [Phase, number] => cut[1] !== null);
  const segments = known
    .map(([phase, from], index) => ({ phase, from, to: Math.max(from, Math.min(end, known[index + 1]?.[1] ?? end)) }))
    .filter(({ from, to }) => to > from);
  const durable = entries.filter((entry) => entry.kind === "checkpoint.durable");
  const isLoss = attempt.reason !== null && LOSSES.has(attempt.reason) && runTo !== null && running !== null;
  const saved = durable.length ? Math.min(savedAt(durable[durable.length - 1] as TimelineEntry), runTo ?? now) : null;
  const lostFrom = isLoss && reportsCheckpoints ? Math.max(saved ?? running, running) : null;
  return {
    attempt,
    key: attemptKey(attempt),
    row: rowName(attempt),
    from: seconds(attempt.requested_at),
    to: Math.max(end, seconds(attempt.requested_at)),
    isOver: attempt.state === "GONE",
    segments,
    marks: marks(entries, durable),
    step: durable.length ? Number((durable[durable.length - 1] as TimelineEntry).data.step) : null,
    lostSeconds: lostFrom === null || runTo === null ? (isLoss ? null : 0) : runTo - lostFrom,
    lostFrom,
    runFrom: running,
    runTo,
    refusal: refusal ? String(refusal.data.code ?? "refused") : null,
  };
}

/** When the state was taken that a checkpoint holds: its durability came later. */
function savedAt(entry: TimelineEntry): number {
  const taken = Number(entry.data.at);
  return Number.isFinite(taken) && taken > 0 ? Math.min(taken, seconds(entry.at)) : seconds(entry.at);
}

function marks(entries: TimelineEntry[], durable: TimelineEntry[]): Mark[] {
  const found: Mark[] = [];
  const notice = entries.find((entry) => entry.kind === "node.notice");
  if (notice) found.push({ kind: "notice", at: seconds(notice.at), text: `notice: ${notice.message}` });
  for (const entry of entries) {
    if (entry.kind === "attempt.lost" && !notice) {
      const kind = PREEMPTIONS.has(entry.reason ?? "") ? "preempted" : "lost";
      found.push({ kind, at: seconds(entry.at), text: entry.message });
    }
    if (entry.kind === "attempt.refused") found.push({ kind: "refused", at: seconds(entry.at), text: `refused: ${entry.message || entry.data.code}` });
    if (entry.kind === "attempt.failed") found.push({ kind: "failed", at: seconds(entry.at), text: entry.message });
  }
  for (const entry of durable) found.push({ kind: "durable", at: seconds(entry.at), text: `step ${entry.data.step} is durable` });
  return found;
}

export interface Losses {
  preemptions: number;
  seconds: number;
  usd: number;
  /** Whether the work lost is known for every loss. */
  isKnown: boolean;
}

export function losses(all: Bar[]): Losses {
  const total: Losses = { preemptions: 0, seconds: 0, usd: 0, isKnown: true };
  for (const { attempt, lostSeconds } of all) {
    if (PREEMPTIONS.has(attempt.reason ?? "") && attempt.running_at) total.preemptions += 1;
    if (lostSeconds === null) total.isKnown = false;
    else {
      total.seconds += lostSeconds;
      total.usd += (lostSeconds / 3600) * attempt.price_per_hour * Math.max(1, attempt.nodes.length);
    }
  }
  return total;
}
