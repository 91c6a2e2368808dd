// Launch a job from YAML: what it would buy, then submit.
import { useEffect, useState } from "preact/hooks";
import { get, newKey, send } from "../core/api";
import { count, money, percent, place } from "../core/format";
import { address, go } from "../core/router";
import { ErrorBox } from "../parts/basics";
import type { ParsedTasks, Plan, TaskSpec } from "../types";

const EXAMPLE = `name: hello
resources:
  cpus: 1+
  use_spot: true
run: |
  for step in $(seq 100); do
    echo "step $step"
    sleep 1
  done
`;
export const STORED_USER = "perdure.user";

export function LaunchPage() {
  const from = address.value.query.get("from");
  const [yaml, setYaml] = useState(from ? "" : EXAMPLE);
  const [user, setUser] = useState(localStorage.getItem(STORED_USER) ?? "");
  const [number, setNumber] = useState(1);
  const [plan, setPlan] = useState<{ plan: Plan; warnings: string[] } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const [secrets, setSecrets] = useState<string[]>([]);
  const [key] = useState(newKey);
  const [cron, setCron] = useState("");
  useEffect(() => {
    if (!from) return;
    get<{ tasks: TaskSpec[] }>(`/jobs/${encodeURIComponent(from)}/spec`).then(({ tasks }) => {
      setYaml(tasks.map((task) => task.yaml).join("---\n"));
      setSecrets(tasks.flatMap((task) => task.secrets));
    }, setError);
  }, [from]);
  const run = async (action: (parsed: ParsedTasks) => Promise<void>) => {
    setBusy(true);
    setError(null);
    try {
      await action(await send<ParsedTasks>("POST", "/tasks", { yaml }));
    } catch (problem) {
      setError(problem as Error);
    }
    setBusy(false);
  };
  const check = () =>
    run(async ({ name, tasks, warnings }) => {
      const found = await send<Plan>("POST", "/plan", { name, tasks });
      setPlan({ plan: found, warnings: [...warnings, ...found.warnings] });
    });
  const launch = () =>
    run(async ({ name, tasks }) => {
      localStorage.setItem(STORED_USER, user);
      if (cron) {
        const called = name ?? String(tasks[0]?.name ?? "");
        if (!called) throw new Error("a job that is launched again and again needs a name: write `name:` into the task");
        const time_zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
        await send("PUT", `/schedules/${encodeURIComponent(called)}`, { cron, time_zone, tasks, user });
        go("/schedules");
        return;
      }
      const { job_id, job_ids } = await send<{ job_id: number; job_ids: number[] }>("POST", "/jobs", { name, tasks, user, key, num_jobs: number });
      go(job_ids.length > 1 ? "/jobs" : `/jobs/${job_id}`);
    });
  return (
    <>
      <div class="head">
        <h1>Launch a job</h1>
      </div>
      <form
        class="launch"
        onSubmit={(event) => {
          event.preventDefault();
          void launch();
        }}
      >
        <label class="field">
          Task YAML
          <textarea class="code" rows={20} spellcheck={false} value={yaml} onInput={(event) => (setYaml(event.currentTarget.value), setPlan(null))} required />
        </label>
        {secrets.length > 0 && (
          <p class="muted">
            Job {from} had secrets, which are not copied: {secrets.join(", ")}. Write their values under <code>secrets:</code>.
          </p>
        )}
        <div class="row">
          <label class="field">
            User
            <input value={user} autocomplete="username" onInput={(event) => setUser(event.currentTarget.value)} />
          </label>
          <label class="field">
            Identical jobs
            <input type="number" class="small" min={1} max={10000} value={number} onInput={(event) => setNumber(event.currentTarget.valueAsNumber || 1)} disabled={cron !== ""} />
          </label>
          <label class="field" title="Five fields of cron, in your time zone: 0 3 * * * is every night at 3">
            Schedule (cron)
            <input class="small cron" value={cron} placeholder="0 3 * * *" spellcheck={false} onInput={(event) => setCron(event.currentTarget.value.trim())} />
          </label>
          <span class="grow" />
          <button type="button" disabled={busy} onClick={() => void check()}>
            Show what it would buy
          </button>
          <button type="submit" class="primary" disabled={busy}>
            {cron ? "Save the schedule" : "Launch"}
          </button>
        </div>
      </form>
      <ErrorBox error={error} />
      {plan && <PlanView {...plan} />}
      <p class="muted">
        Files of your computer cannot be sent from here: for a task with a <code>workdir</code> or local mounts, use <code>perdure jobs launch</code>.
      </p>
    </>
  );
}

export function PlanView({ plan, warnings }: { plan: Plan; warnings: string[] }) {
  return (
    <section aria-label="Plan">
      {warnings.map((warning) => (
        <p key={warning} class="message">
          {warning}
        </p>
      ))}
      {plan.tasks.map((task, index) => (
        <div key={index}>
          <h2>{task.name}</h2>
          <p>
            {task.strategy}: {task.strategy_reason}.{" "}
            {task.saving !== null && task.saving > 0 && `Saves ${percent(task.saving)} of the on-demand price.`}
          </p>
          <div class="scroll" tabIndex={0} role="region" aria-label={`Offers for ${task.name}`}>
            <table class="plain">
              <thead>
                <tr>
                  <th class="num">#</th>
                  <th>Where</th>
                  <th>Machine</th>
                  <th>Accelerators</th>
                  <th>Market</th>
                  <th class="num">$/h</th>
                </tr>
              </thead>
              <tbody>
                {task.offers.map((offer, at) => (
                  <tr key={at}>
                    <td class="num">{at + 1}</td>
                    <td>{place(offer)}</td>
                    <td>{offer.instance_type}</td>
                    <td>{offer.accelerators}</td>
                    <td>{offer.market}</td>
                    <td class="num">{money(offer.price_per_hour * task.num_nodes)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {task.total_offers > task.offers.length && <p class="muted">The first {task.offers.length} of {count(task.total_offers)} offers that fit.</p>}
          {task.unavailable.map((line) => (
            <p key={line} class="muted">
              {line}
            </p>
          ))}
        </div>
      ))}
    </section>
  );
}
