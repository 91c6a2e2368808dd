// The list of jobs: filters, search, what waits and why, bulk cancel.
import { useEffect, useRef, useState } from "preact/hooks";
import { send } from "../core/api";
import { count, duration, money, percent, place, plural, savedShare } from "../core/format";
import { useKeys } from "../core/keyboard";
import { setClock, useLive } from "../core/live";
import { may, mayChange, me } from "../core/me";
import { address, go, withQuery } from "../core/router";
import { Ago, Confirm, Empty, ErrorBox, Status, isTerminal } from "../parts/basics";
import type { Job, JobPage as Page } from "../types";

const PAGE_SIZE = 50;
const ACTIVE = ["PENDING", "STARTING", "RUNNING", "RECOVERING", "CANCELLING"];
const ORDER = [...ACTIVE, "SUCCEEDED", "FAILED", "FAILED_SETUP", "FAILED_PRECHECKS", "FAILED_NO_RESOURCE", "FAILED_CONTROLLER", "CANCELLED"];

/** One row for each job: of a pipeline, the task that it has come to, with the costs of all. */
export function foldTasks(tasks: Job[]): Job[] {
  const rows: Job[] = [];
  for (let start = 0; start < tasks.length; ) {
    const first = tasks[start] as Job;
    let end = start + 1;
    while (tasks[end]?.job_id === first.job_id) end += 1;
    const all = tasks.slice(start, end);
    const current = all.find((task) => task.status !== "SUCCEEDED") ?? (all[all.length - 1] as Job);
    const sum = (of: (task: Job) => number) => all.reduce((total, task) => total + of(task), 0);
    rows.push({
      ...current,
      cost_usd: sum((task) => task.cost_usd),
      on_demand_cost_usd: sum((task) => task.on_demand_cost_usd),
      recovery_count: sum((task) => task.recovery_count),
      job_duration_s: sum((task) => task.job_duration_s),
    });
    start = end;
  }
  return rows;
}

function listPath(query: URLSearchParams): string {
  const asked = new URLSearchParams({ limit: String(PAGE_SIZE), shared: "1" });
  const status = query.get("status") ?? "active";
  if (status === "active") asked.set("skip_finished", "1");
  else if (status !== "all") asked.set("status", status);
  const search = (query.get("q") ?? "").trim();
  if (/^[\d,\s]+$/.test(search)) asked.set("ids", search);
  else if (search) asked.set("name", /[*?[]/.test(search) ? search : `*${search}*`);
  for (const name of ["before", "user"]) if (query.get(name)) asked.set(name, query.get(name) as string);
  return `/jobs?${asked}`;
}

export function JobsPage() {
  const { query } = address.value;
  const shown = useRef<Set<number>>(new Set());
  const isFirst = !query.get("before");
  const newest = useRef(0);
  const concerns = (ids: number[]) => ids.some((id) => shown.current.has(id) || (isFirst && id > newest.current));
  const { data, error, reload } = useLive<Page>(listPath(query), concerns, 700, 30_000);
  const [last, setLast] = useState<Page | null>(null);
  useEffect(() => {
    if (!data) return;
    setLast(data);
    setClock(data.now);
    newest.current = Math.max(newest.current, ...data.jobs.map((job) => job.job_id));
    shown.current = new Set(data.jobs.map((job) => job.job_id));
  }, [data]);
  const page = data ?? last; // while another page loads, the old one stays
  const rows = foldTasks(page?.jobs ?? []);
  const [selected, setSelected] = useState<Set<number>>(new Set());
  const chosen = rows.filter((row) => selected.has(row.job_id) && !isTerminal(row.status));
  const [isCancelling, setCancelling] = useState(false);
  const cancellable = rows.filter((row) => !isTerminal(row.status) && mayChange(row.user));

  const toggle = (id: number) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  const move = (step: number) => {
    const links = [...document.querySelectorAll<HTMLAnchorElement>("a.name")];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    links[Math.max(0, Math.min(links.length - 1, at + step))]?.focus();
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      const id = (document.activeElement as HTMLElement | null)?.dataset.job;
      if (id) toggle(Number(id));
    },
    c: () => chosen.length && setCancelling(true),
    Escape: () => setSelected(new Set()),
  });

  return (
    <>
      <div class="head">
        <h1>Jobs</h1>
        {may("run") && (
          <a class="button primary" href="/launch">
            Launch a job
          </a>
        )}
      </div>
      <Filters counts={page?.counts ?? {}} total={page?.total ?? 0} />
      <ErrorBox error={error} />
      {page && !rows.length ? (
        <NoJobs hasAny={page.total > 0} />
      ) : (
        <table class="jobs" aria-busy={data === null}>
          <thead>
            <tr>
              <th class="pick">
                <input
                  type="checkbox"
                  aria-label="Select all jobs of this page that have not ended"
                  disabled={!cancellable.length}
                  checked={chosen.length > 0 && chosen.length === cancellable.length}
                  onChange={(event) => setSelected(new Set(event.currentTarget.checked ? cancellable.map((row) => row.job_id) : []))}
                />
              </th>
              <th class="num id">ID</th>
              <th>Job</th>
              <th>Status</th>
              <th>Where</th>
              <th class="num">Age</th>
              <th class="num">Ran</th>
              <th class="num" title="Recoveries: how often it continued elsewhere">
                Recov.
              </th>
              <th class="num">Cost</th>
              <th class="num" title="Saved, compared with on-demand machines">
                Saved
              </th>
              <th>User</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <Row key={row.job_id} row={row} isSelected={selected.has(row.job_id)} onToggle={() => toggle(row.job_id)} />
            ))}
          </tbody>
        </table>
      )}
      <Pager rows={rows} />
      {chosen.length > 0 && (
        <div class="bulk" role="region" aria-label="Selected jobs">
          <span>{plural(chosen.length, "job")} selected</span>
          <button type="button" onClick={() => setSelected(new Set())}>
            Clear
          </button>
          <button type="button" class="danger" onClick={() => setCancelling(true)}>
            Cancel {plural(chosen.length, "job")}
          </button>
        </div>
      )}
      {isCancelling && (
        <CancelDialog
          jobs={chosen}
          onClose={() => {
            setCancelling(false);
            setSelected(new Set());
            reload();
          }}
        />
      )}
    </>
  );
}

function Filters({ counts, total }: { counts: Record<string, number>; total: number }) {
  const { query } = address.value;
  const status = query.get("status") ?? "active";
  const active = ACTIVE.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
  const names = ORDER.filter((name) => counts[name] || name === status);
  const chip = (value: string, label: string, number: number) => (
    <a key={value} class="chip" href={withQuery({ status: value === "active" ? "" : value, before: "" })} aria-current={status === value ? "true" : undefined}>
      {label} <span class="n">{count(number)}</span>
    </a>
  );
  const timer = useRef(0);
  const search = (text: string) => {
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => go(withQuery({ q: text.trim(), before: "" }), true), 200);
  };
  return (
    <div class="filters">
      <div class="chips" role="group" aria-label="Status">
        {chip("active", "Active", active)}
        {chip("all", "All", total)}
        <span class="divider" aria-hidden="true" />
        {names.map((name) => chip(name, name.toLowerCase().replaceAll("_", " "), counts[name] ?? 0))}
      </div>
      <UserFilter />
      <input
        type="search"
        data-search
        class="search"
        aria-label="Search by name, pattern or id"
        placeholder="Name, pattern* or id"
        title="Part of a name, a pattern with * ? [a-z], or ids"
        defaultValue={query.get("q") ?? ""}
        onInput={(event) => search(event.currentTarget.value)}
      />
    </div>
  );
}

/** Whose jobs are shown. Of a user who sees only their own, there is nothing to choose. */
function UserFilter() {
  const user = address.value.query.get("user") ?? "";
  if (!me.value?.sees_all || (!me.value.has_users && !user)) return null;
  const chip = (value: string, label: string) => (
    <a key={value} class="chip" href={withQuery({ user: value, before: "" })} aria-current={user === value ? "true" : undefined}>
      {label}
    </a>
  );
  return (
    <div class="chips" role="group" aria-label="User">
      {chip("", "Everybody's")}
      {me.value.has_users && chip(me.value.user, "Mine")}
      {user && user !== me.value.user && chip(user, user)}
    </div>
  );
}

function NoJobs({ hasAny }: { hasAny: boolean }) {
  if (hasAny)
    return (
      <Empty title="No job matches">
        <p>
          <a href="/jobs">Active jobs</a> · <a href="/jobs?status=all">All jobs</a>
        </p>
      </Empty>
    );
  return (
    <Empty title="No jobs yet">
      <p>Launch one here, or from a terminal:</p>
      <pre class="command">perdure jobs launch train.yaml</pre>
    </Empty>
  );
}

function Row({ row, isSelected, onToggle }: { row: Job; isSelected: boolean; onToggle: () => void }) {
  const why = whyText(row);
  const fixed = isTerminal(row.status) || !mayChange(row.user);
  return (
    <tr class={isSelected ? "selected" : ""}>
      <td class="pick">
        <input type="checkbox" aria-label={`Select job ${row.job_id}`} checked={isSelected} disabled={fixed} onChange={onToggle} />
      </td>
      <td class="num id">{row.job_id}</td>
      <td class="job">
        <a class="name" data-job={row.job_id} href={`/jobs/${row.job_id}`}>
          {row.name}
        </a>
        {row.num_tasks > 1 && (
          <span class="part">
            task {row.task_index + 1}/{row.num_tasks} {row.task_name}
          </span>
        )}
        {row.num_nodes > 1 && <span class="part">{row.num_nodes} nodes</span>}
        {why && <div class="why">{why}</div>}
      </td>
      <td class="state">
        <Status status={row.status} />
      </td>
      <td class="where">
        {place(row)}
        {row.market && <span class="part">{row.market}</span>}
      </td>
      <td class="num age">
        <Ago at={row.submitted_at} suffix="" />
      </td>
      <td class="num ran">{row.job_duration_s ? duration(row.job_duration_s) : ""}</td>
      <td class="num recov">{row.recovery_count || ""}</td>
      <td class="num cost">{row.cost_usd ? money(row.cost_usd) : ""}</td>
      <td class="num saved">{savedText(row)}</td>
      <td class="user">{me.value?.sees_all && row.user ? <a href={withQuery({ user: row.user, before: "" })}>{row.user}</a> : row.user}</td>
    </tr>
  );
}

function savedText(row: Job): string {
  const share = savedShare(row.cost_usd, row.on_demand_cost_usd);
  return share !== null && share >= 0.005 ? percent(share) : "";
}

/** Why a job does not run: only what is of interest in a list. */
function whyText(row: Job): string {
  if (row.status === "RUNNING" || row.status === "SUCCEEDED" || row.status === "CANCELLED") return row.cleanup ?? "";
  return row.message || (row.reason && row.reason !== "SUBMITTED" ? row.reason.toLowerCase().replaceAll("_", " ") : "");
}

function Pager({ rows }: { rows: Job[] }) {
  const { query } = address.value;
  const isFirst = !query.get("before");
  const isLast = rows.length < PAGE_SIZE;
  if (isFirst && isLast) return null;
  return (
    <nav class="pager" aria-label="Pages">
      {!isFirst && <a href={withQuery({ before: "" })}>Newest</a>}
      {!isLast && <a href={withQuery({ before: String(rows[rows.length - 1]?.job_id) })}>Older</a>}
    </nav>
  );
}

export function CancelDialog({ jobs, onClose }: { jobs: Job[]; onClose: () => void }) {
  const [graceful, setGraceful] = useState(true);
  const [grace, setGrace] = useState<number | null>(null);
  const what = jobs.length === 1 ? `job ${jobs[0]?.job_id} (${jobs[0]?.name})` : plural(jobs.length, "job");
  return (
    <Confirm
      title={`Cancel ${what}?`}
      verb={`Cancel ${jobs.length === 1 ? "the job" : plural(jobs.length, "job")}`}
      danger
      onClose={onClose}
      act={async () => void (await send("POST", "/jobs/cancel", { ids: jobs.map((job) => job.job_id), graceful, grace_s: graceful ? grace : null }))}
    >
      <label class="check">
        <input type="radio" name="how" checked={graceful} onChange={() => setGraceful(true)} /> Let it save its work first, for at most
        <input
          type="number"
          class="small"
          min={0}
          placeholder="60"
          aria-label="Seconds to save"
          disabled={!graceful}
          onInput={(event) => setGrace(Number.isNaN(event.currentTarget.valueAsNumber) ? null : event.currentTarget.valueAsNumber)}
        />
        seconds
      </label>
      <label class="check">
        <input type="radio" name="how" checked={!graceful} onChange={() => setGraceful(false)} /> At once; unsaved work is lost
      </label>
    </Confirm>
  );
}
