// Jobs that were launched together: the newest job of each rank, and what can be done to all.
import { useState } from "preact/hooks";
import { newKey, send } from "../core/api";
import { count, money, plural } from "../core/format";
import { useLive } from "../core/live";
import { mayChange } from "../core/me";
import { Confirm, Status, isTerminal } from "../parts/basics";
import { Fact, Table, ThingPage } from "../parts/things";
import type { Sweep } from "../types";

const SHOWN = 200;

export function SweepPage({ id }: { id: number }) {
  const { data: sweep, error, reload } = useLive<Sweep>(`/sweeps/${id}`, () => true, 1000, 15_000);
  const [dialog, setDialog] = useState<"cancel" | "retry" | null>(null);
  const [all, setAll] = useState(false);
  const live = (sweep?.jobs ?? []).filter((job) => !isTerminal(job.status)).map((job) => job.job_id);
  const failed = (sweep?.jobs ?? []).filter((job) => job.status.startsWith("FAILED")).length;
  const actions = sweep && mayChange(sweep.user) && (
    <>
      {failed > 0 && (
        <button type="button" onClick={() => setDialog("retry")}>
          Launch {plural(failed, "failed one")} again …
        </button>
      )}
      {live.length > 0 && (
        <button type="button" class="danger" onClick={() => setDialog("cancel")}>
          Cancel {count(live.length)} …
        </button>
      )}
    </>
  );
  const names = [...new Set((sweep?.jobs ?? []).flatMap((job) => Object.keys(job.values)))];
  return (
    <ThingPage name={sweep ? sweep.name : `Sweep ${id}`} error={error} actions={actions} status={null} parts={[]}>
      {sweep && (
        <>
          <dl class="facts">
            <Fact name="Sweep">{sweep.sweep_id}</Fact>
            <Fact name="Jobs">{count(sweep.size)}</Fact>
            {Object.entries(sweep.counts).map(([status, number]) => (
              <Fact key={status} name={status.charAt(0) + status.slice(1).toLowerCase().replaceAll("_", " ")}>
                {count(number)}
              </Fact>
            ))}
            <Fact name="Cost">{money(sweep.cost_usd)}</Fact>
            <Fact name="User">{sweep.user}</Fact>
          </dl>
          <Table label="Jobs of the sweep" heads={["#Rank", "#Job", ...names, "Status", "Why"]}>
            {(all ? sweep.jobs : sweep.jobs.slice(0, SHOWN)).map((job) => (
              <tr key={job.rank}>
                <td class="num">{job.rank}</td>
                <td class="num">
                  <a href={`/jobs/${job.job_id}`}>{job.job_id}</a>
                </td>
                {names.map((name) => (
                  <td key={name}>{job.values[name]}</td>
                ))}
                <td>
                  <Status status={job.status} />
                </td>
                <td class="prose">{job.status === "SUCCEEDED" || job.status === "RUNNING" ? "" : job.message}</td>
              </tr>
            ))}
          </Table>
          {!all && sweep.jobs.length > SHOWN && (
            <button type="button" class="link" onClick={() => setAll(true)}>
              Show all {count(sweep.jobs.length)}
            </button>
          )}
        </>
      )}
      {dialog === "cancel" && (
        <Confirm
          title={`Cancel ${plural(live.length, "job")} of the sweep?`}
          verb="Cancel them"
          danger
          onClose={() => setDialog(null)}
          act={async () => {
            await send("POST", "/jobs/cancel", { ids: live });
            reload();
          }}
        >
          <p>They may save their work first.</p>
        </Confirm>
      )}
      {dialog === "retry" && (
        <Confirm
          title={`Launch ${plural(failed, "failed job")} again?`}
          verb="Launch"
          onClose={() => setDialog(null)}
          act={async () => {
            await send("POST", `/sweeps/${id}/retry`, { key: newKey() });
            reload();
          }}
        >
          <p>Each is launched with the same values, as a job of this sweep.</p>
        </Confirm>
      )}
    </ThingPage>
  );
}
