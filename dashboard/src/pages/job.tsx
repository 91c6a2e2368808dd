// One job: what it does, where it was, what it cost, why it waits; its log, timeline, YAML.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, send } from "../core/api";
import { clockTime, count, duration, money, ordinal, percent, place, plural, savedShare, seconds } from "../core/format";
import { useKeys } from "../core/keyboard";
import { now, setClock, useLive } from "../core/live";
import { may, mayChange } from "../core/me";
import { address, go, withQuery } from "../core/router";
import { type Bar, bars, losses } from "../job/attempts";
import { Gantt } from "../job/gantt";
import { Graphs } from "../job/graphs";
import { Log } from "../job/log";
import { Timeline } from "../job/timeline";
import { Ago, Confirm, CopyButton, ErrorBox, Status, isTerminal, statusSign } from "../parts/basics";
import { Fact, Table } from "../parts/things";
import type { JobDetail, RecentJob, TaskSpec } from "../types";
import { CancelDialog, foldTasks } from "./jobs";

/** A job may have had a thousand; of earlier ones, the page asks when somebody wants to see them. */
const NEWEST_ATTEMPTS = 30;
const MAX_ATTEMPTS = 1_000;

const TABS = [
  ["", "Log"],
  ["timeline", "Timeline"],
  ["graphs", "Graphs"],
  ["yaml", "YAML"],
];

export function JobPage({ id }: { id: number }) {
  const [most, setMost] = useState(NEWEST_ATTEMPTS);
  const { data, error, reload } = useLive<RecentJob>(`/jobs/${id}/recent?attempts=${most}`, (ids) => ids.includes(id), 250, 30_000, true);
  const job = data?.job_id === id ? data : null;
  const [dialog, setDialog] = useState<"cancel" | "preempt" | null>(null);
  const [attempt, setAttempt] = useState<number | null>(null);
  const [selected, setSelected] = useState<string | null>(null);
  const tab = address.value.query.get("tab") ?? "";
  useEffect(() => {
    if (!job) return;
    setClock(job.now);
    document.title = `${statusSign(job.status)} ${job.name} · Perdure`;
  }, [job]);
  const all = useMemo(() => (job ? bars(job) : []), [job]); // the page is drawn again every second
  const step = (by: number) => {
    const at = all.findIndex((bar) => bar.key === selected);
    const next = all[at < 0 ? all.length - 1 : Math.max(0, Math.min(all.length - 1, at + by))];
    if (next) setSelected(next.key);
  };
  useKeys({
    c: () => job && !isTerminal(job.status) && !isHost(job) && mayChange(job.user) && setDialog("cancel"),
    l: () => go(withQuery({ tab: "" })),
    "[": () => step(-1),
    "]": () => step(1),
  });
  if (!job)
    return error ? (
      <>
        <h1>Job {id}</h1>
        <ErrorBox error={error} />
      </>
    ) : null;
  const ended = isTerminal(job.status);
  const mine = mayChange(job.user); // or the caller may change everybody's
  const row = foldTasks(job.tasks)[0] ?? job;
  const close = () => {
    setDialog(null);
    reload();
  };
  return (
    <>
      <div class="head job-head">
        <div>
          <p class="crumb">
            <a href="/jobs">Jobs</a> / {job.job_id}
          </p>
          <h1>{job.name}</h1>
        </div>
        <div class="actions">
          {!job.cluster && may("run") && (
            <a class="button" href={`/launch?from=${id}`}>
              Launch again
            </a>
          )}
          {!ended && mine && (
            <button type="button" onClick={() => setDialog("preempt")} disabled={!all.some((bar) => !bar.isOver)}>
              Preempt …
            </button>
          )}
          {!ended && mine && !isHost(job) && (
            <button type="button" class="danger" onClick={() => setDialog("cancel")}>
              Cancel …
            </button>
          )}
        </div>
      </div>
      <ErrorBox error={error} />
      {isHost(job) && <HostNote cluster={job.cluster as string} ended={ended} />}
      <Summary job={job} all={all} />
      {job.tasks.length > 1 && <Tasks job={job} />}
      <section aria-labelledby="attempts">
        <h2 id="attempts">Attempts</h2>
        {all.length ? (
          <>
            <Gantt bars={all} selected={selected} onSelect={setSelected} now={ended ? seconds(job.now) : now.value} />
            <AttemptTable all={all} job={job} selected={selected} onSelect={setSelected} onLog={(generation) => (setAttempt(generation), go(withQuery({ tab: "" })))} />
            {most < MAX_ATTEMPTS && job.num_attempts > all.length && (
              <p class="muted">
                The newest {count(all.length)} of {plural(job.num_attempts, "attempt")}.{" "}
                <button type="button" class="link" onClick={() => setMost(MAX_ATTEMPTS)}>
                  Load {job.num_attempts <= MAX_ATTEMPTS ? "all" : count(MAX_ATTEMPTS)}
                </button>
              </p>
            )}
          </>
        ) : (
          <p class="muted">No machine was requested yet.</p>
        )}
      </section>
      <nav class="tabs" aria-label="Parts of the job">
        {TABS.filter(([name]) => name !== "yaml" || !isHost(job)).map(([name, title]) => (
          <a key={name} href={withQuery({ tab: name as string })} aria-current={tab === name ? "true" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      {tab === "" && isHost(job) && <p class="muted">The machines of a cluster have no log of their own; each of its jobs has one.</p>}
      {tab === "" && !isHost(job) && <Log id={id} task={null} attempts={[...new Set(all.map((bar) => bar.attempt.generation))]} goTo={attempt} />}
      {tab === "timeline" && <Timeline job={job} />}
      {tab === "graphs" && <Graphs job={job} all={all} />}
      {tab === "yaml" && <Yaml id={id} />}
      {dialog === "cancel" && <CancelDialog jobs={[row]} onClose={close} />}
      {dialog === "preempt" && <PreemptDialog id={id} nodes={job.num_nodes} onClose={close} />}
    </>
  );
}

/** Whether the job holds the machines of a cluster: users know the cluster, and manage it with its commands. */
function isHost(job: JobDetail): boolean {
  return job.cluster !== null && job.cluster_job === null;
}

function HostNote({ cluster, ended }: { cluster: string; ended: boolean }) {
  return (
    <p class="message">
      {ended ? "Held" : "Holds"} the machines of cluster {cluster}. <a href={`/clusters/${encodeURIComponent(cluster)}`}>Its jobs and their logs</a>, or{" "}
      <code>perdure queue {cluster}</code> and <code>perdure logs {cluster}</code>.
      {!ended && (
        <>
          {" "}
          To stop or end it: <code>perdure stop {cluster}</code> or <code>perdure down {cluster}</code>.
        </>
      )}
    </p>
  );
}

function Summary({ job, all }: { job: RecentJob; all: Bar[] }) {
  const isWhole = all.length === job.num_attempts;
  const lost = isWhole ? losses(all) : { preemptions: job.preemptions, seconds: job.lost_s ?? 0, usd: job.lost_usd ?? 0, isKnown: job.lost_s !== null };
  const row = foldTasks(job.tasks)[0] ?? job;
  const share = savedShare(row.cost_usd, row.on_demand_cost_usd);
  const saved = row.on_demand_cost_usd - row.cost_usd;
  const message = job.status === "RUNNING" || job.status === "SUCCEEDED" ? "" : (job.message ?? "");
  return (
    <>
      <p class="sentence">
        <Status status={job.status} />
        <span>{sentence(job, all, isWhole ? 0 : job.num_attempts - all.length)}</span>
      </p>
      {message && <p class={job.status.startsWith("FAILED") ? "message bad" : "message"}>{message}</p>}
      <dl class="facts">
        <Fact name="Cost">
          {money(row.cost_usd)}
          {share !== null && saved > 0 && (
            <span class="part">
              saved {money(saved)} ({percent(share)})
            </span>
          )}
        </Fact>
        <Fact name="Preemptions">
          {count(lost.preemptions)}
          {row.recovery_count !== lost.preemptions && <span class="part">{plural(row.recovery_count, "recovery", "recoveries")}</span>}
        </Fact>
        <Fact name="Work done again">
          {lost.isKnown ? (lost.seconds >= 0.5 ? duration(lost.seconds) : lost.seconds ? "less than 1s" : "none") : lost.seconds ? `at least ${duration(lost.seconds)}` : "not known"}
          {lost.usd > 0 && <span class="part">{money(lost.usd)}</span>}
          {!lost.isKnown && <span class="part">no checkpoint is reported</span>}
        </Fact>
        <Fact name="Ran">
          {duration(row.job_duration_s)}
          <span class="part">of {duration(job.total_duration_s)}</span>
        </Fact>
        <Fact name="Submitted">
          <Ago at={job.submitted_at} />
          <span class="part">by {job.user || "unknown"}</span>
        </Fact>
        <Fact name="Machines">{job.cluster_resources || job.resources || "–"}</Fact>
        {job.sweep_id !== null && (
          <Fact name="Sweep">
            <a href={`/sweeps/${job.sweep_id}`}>{job.sweep_id}</a>
          </Fact>
        )}
        {job.status === "RUNNING" && (
          <Fact name="Enter">
            <code>perdure jobs ssh {job.job_id}</code>
          </Fact>
        )}
        {job.exit_code !== null && <Fact name="Exit code">{job.exit_code}</Fact>}
        {job.cleanup && <Fact name="Clean-up">{job.cleanup}</Fact>}
        <Fact name="Task id" wide>
          <code>{job.task_id}</code>
        </Fact>
      </dl>
    </>
  );
}

/** What the job is doing, as one would tell a colleague. */
function sentence(job: JobDetail, all: Bar[], earlier: number): string {
  const used = all.filter((bar) => bar.refusal === null);
  const machines = used.length + earlier;
  const machine = job.num_nodes > 1 ? "set of machines" : "machine";
  const where = job.cloud ? ` in ${place(job)}` : "";
  const which = machines > 1 ? (earlier ? `, in attempt ${job.generation}` : `, on its ${ordinal(machines)} ${machine}`) : "";
  const steps = all.map((bar) => bar.step).filter((step): step is number => step !== null);
  const step = steps.length ? ` Step ${count(Math.max(...steps))} is safe.` : "";
  switch (job.status) {
    case "RUNNING":
      return `${where.trim() || "running"}${which}.${step}`;
    case "STARTING":
      return `${where ? `a machine starts${where}` : "looks for a machine"}.`;
    case "RECOVERING":
      return `${where ? `continues${where} soon` : "looks for another machine"}.${step}`;
    case "PENDING":
      return "waits.";
    case "SUCCEEDED":
      return `after ${duration(job.total_duration_s)}${earlier ? `, in ${plural(machines, "attempt")}` : used.length > 1 ? `, on ${plural(used.length, machine, `${machine.replace("machine", "machines").replace("set", "sets").replace("machiness", "machines")}`)}` : ""}.`;
    case "CANCELLING":
      return "saves its work and stops.";
    default:
      return job.ended_at ? `after ${duration(job.total_duration_s)}.` : "";
  }
}

function Tasks({ job }: { job: JobDetail }) {
  return (
    <section aria-labelledby="tasks">
      <h2 id="tasks">Tasks</h2>
      <Table label="Tasks of the job" heads={["#", "Task", "Status", "#Ran", "#Recov.", "#Cost", "Why"]}>
        {job.tasks.map((task) => (
          <tr key={task.task_index}>
            <td class="num">{task.task_index}</td>
            <td>{task.task_name}</td>
            <td>
              <Status status={task.status} />
            </td>
            <td class="num">{task.job_duration_s ? duration(task.job_duration_s) : ""}</td>
            <td class="num">{task.recovery_count || ""}</td>
            <td class="num">{task.cost_usd ? money(task.cost_usd) : ""}</td>
            <td>{task.status === "SUCCEEDED" ? "" : task.message}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

interface TableProps {
  all: Bar[];
  job: JobDetail;
  selected: string | null;
  onSelect: (key: string) => void;
  onLog: (generation: number) => void;
}

const TABLE_ROWS = 8;

function AttemptTable({ all, job, selected, onSelect, onLog }: TableProps) {
  const [end, setEnd] = useState<number | null>(null); // null: the newest
  const last = Math.min(all.length, end ?? all.length);
  const shown = all.slice(Math.max(0, last - TABLE_ROWS), last);
  const at = selected === null ? -1 : all.findIndex((bar) => bar.key === selected);
  useEffect(() => {
    if (at >= 0 && (at >= last || at < last - TABLE_ROWS)) setEnd(Math.min(all.length, at + TABLE_ROWS / 2));
  }, [selected]);
  useEffect(() => {
    const row = selected && document.getElementById(`attempt-${selected}`);
    if (row) row.scrollIntoView({ block: "nearest" });
  }, [selected]);
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label="Attempts as a table">
        <table class="plain attempts">
          <thead>
            <tr>
              <th class="num">#</th>
              {job.num_tasks > 1 && <th>Task</th>}
              <th>Where</th>
              <th>Machine</th>
              <th class="num">$/h</th>
              <th>Requested</th>
              <th class="num">Ready in</th>
              <th class="num">Ran</th>
              <th class="num" title="Work that had to be done again after the loss">
                Again
              </th>
              <th class="num">Cost</th>
              <th>End</th>
              <th>
                <span class="hidden">Log</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((bar) => {
              const { attempt } = bar;
              return (
                <tr key={bar.key} id={`attempt-${bar.key}`} class={bar.key === selected ? "selected" : ""} onClick={() => onSelect(bar.key)}>
                  <td class="num">{attempt.generation}</td>
                  {job.num_tasks > 1 && <td>{attempt.task_index}</td>}
                  <td>
                    {place(attempt)} <span class="part">{attempt.market}</span>
                  </td>
                  <td>{attempt.instance_type}</td>
                  <td class="num">{money(attempt.price_per_hour)}</td>
                  <td>
                    <time dateTime={attempt.requested_at} title={attempt.requested_at}>
                      {clockTime(attempt.requested_at)}
                    </time>
                  </td>
                  <td class="num">{bar.runFrom === null ? "" : duration(bar.runFrom - bar.from)}</td>
                  <td class="num">{bar.runFrom === null || bar.runTo === null ? "" : duration(bar.runTo - bar.runFrom)}</td>
                  <td class="num">{bar.lostSeconds === null ? "?" : bar.lostSeconds >= 0.5 ? duration(bar.lostSeconds) : ""}</td>
                  <td class="num">{attempt.cost_usd ? money(attempt.cost_usd) : ""}</td>
                  <td>{bar.refusal ? `refused: ${bar.refusal}` : (attempt.reason ?? attempt.state).toLowerCase().replaceAll("_", " ")}</td>
                  <td>
                    {bar.refusal === null && (
                      <button type="button" class="link" aria-label={`Log of attempt ${attempt.generation}`} onClick={() => onLog(attempt.generation)}>
                        log
                      </button>
                    )}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {shown.length < all.length && (
        <p class="pager">
          <button type="button" disabled={last <= TABLE_ROWS} onClick={() => setEnd(Math.max(TABLE_ROWS, last - TABLE_ROWS))}>
            Earlier
          </button>
          <span class="muted">
            {count(last - shown.length + 1)}–{count(last)} of {count(all.length)}
          </span>
          <button type="button" disabled={last >= all.length} onClick={() => setEnd(last + TABLE_ROWS >= all.length ? null : last + TABLE_ROWS)}>
            Later
          </button>
        </p>
      )}
    </>
  );
}

function Yaml({ id }: { id: number }) {
  const [tasks, setTasks] = useState<TaskSpec[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    get<{ tasks: TaskSpec[] }>(`/jobs/${id}/spec`).then(({ tasks }) => setTasks(tasks), setError);
  }, [id]);
  if (!tasks) return <ErrorBox error={error} />;
  const text = tasks.map((task) => task.yaml).join("---\n");
  const secrets = tasks.flatMap((task) => task.secrets);
  return (
    <div class="yaml">
      <div class="buttons left">
        <CopyButton text={text} />
        <a class="button" href={`/launch?from=${id}`}>
          Edit and launch
        </a>
      </div>
      {secrets.length > 0 && <p class="muted">Secrets are not shown: {secrets.join(", ")}</p>}
      <pre class="code" tabIndex={0}>
        {text}
      </pre>
    </div>
  );
}

function PreemptDialog({ id, nodes, onClose }: { id: number; nodes: number; onClose: () => void }) {
  const [withNotice, setWithNotice] = useState(true);
  const [notice, setNotice] = useState(120);
  const [node, setNode] = useState(0);
  return (
    <Confirm
      title="Simulate a preemption?"
      verb="Preempt"
      onClose={onClose}
      act={async () => void (await send("POST", `/jobs/${id}/preempt`, { node, notice_s: withNotice ? notice : null }))}
    >
      <p>The cloud takes the machine away, as it does with spot machines. The job continues on another one.</p>
      <label class="check">
        <input type="radio" name="notice" checked={withNotice} onChange={() => setWithNotice(true)} /> With a notice of
        <input type="number" class="small" min={0} max={86400} value={notice} aria-label="Seconds of notice" onInput={(event) => setNotice(event.currentTarget.valueAsNumber || 0)} />
        seconds
      </label>
      <label class="check">
        <input type="radio" name="notice" checked={!withNotice} onChange={() => setWithNotice(false)} /> Without a notice
      </label>
      {nodes > 1 && (
        <label class="check">
          Node <input type="number" class="small" min={0} max={nodes - 1} value={node} onInput={(event) => setNode(event.currentTarget.valueAsNumber || 0)} />
        </label>
      )}
    </Confirm>
  );
}
