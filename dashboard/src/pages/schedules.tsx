// The schedules: jobs that the controller launches again and again.
import { useState } from "preact/hooks";
import { newKey, send } from "../core/api";
import { useLive } from "../core/live";
import { may, mayChange } from "../core/me";
import { go } from "../core/router";
import { Ago, Confirm, Empty, ErrorBox } from "../parts/basics";
import { ListPage, Table } from "../parts/things";
import { clockTime } from "../core/format";
import type { Schedule } from "../types";

export function SchedulesPage() {
  const { data, error, reload } = useLive<{ schedules: Schedule[] }>("/schedules", () => true, 2000, 15_000);
  const [removed, setRemoved] = useState<Schedule | null>(null);
  const [failure, setFailure] = useState<Error | null>(null);
  const act = async (schedule: Schedule, what: "pause" | "resume" | "run") => {
    setFailure(null);
    try {
      const body = what === "run" ? { key: newKey() } : {};
      const { job_id } = await send<{ job_id?: number }>("POST", `${pathOf(schedule)}/${what}`, body);
      if (job_id) go(`/jobs/${job_id}`);
      else reload();
    } catch (problem) {
      setFailure(problem as Error);
    }
  };
  const empty = data && !data.schedules.length && (
    <Empty title="No schedules">
      <p>
        A schedule launches a job at the times of a cron expression. {may("run") && <a href="/launch">Launch a job</a>} at such times, or from a
        terminal:
      </p>
      <pre class="command">perdure jobs schedule set nightly '0 3 * * *' train.yaml</pre>
    </Empty>
  );
  return (
    <ListPage title="Schedules" error={error} empty={empty}>
      <ErrorBox error={failure} />
      {data && (
        <Table label="Schedules" heads={["Schedule", "When", "Next", "Last due", "Last job", "Result", "User", "(Actions)"]}>
          {data.schedules.map((schedule) => (
            <tr key={schedule.name}>
              <td>
                <a class="name" href={`/jobs?status=all&q=${encodeURIComponent(schedule.name)}`} title="Its jobs">
                  {schedule.name}
                </a>
              </td>
              <td>
                <code>{schedule.cron}</code> <span class="part">{schedule.time_zone}</span>
              </td>
              <td>{schedule.paused ? "paused" : schedule.next_at && <time dateTime={schedule.next_at}>{clockTime(schedule.next_at, true)}</time>}</td>
              <td>
                <Ago at={schedule.last_due_at} />
              </td>
              <td>{schedule.last_job_id && <a href={`/jobs/${schedule.last_job_id}`}>job {schedule.last_job_id}</a>}</td>
              <td>{schedule.last_result}</td>
              <td>{schedule.user}</td>
              <td>
                {mayChange(schedule.user) && (
                  <span class="links">
                    <Action name="Run now" of={schedule} act={() => void act(schedule, "run")} />
                    <Action
                      name={schedule.paused ? "Resume" : "Pause"}
                      of={schedule}
                      act={() => void act(schedule, schedule.paused ? "resume" : "pause")}
                    />
                    <Action name="Remove" of={schedule} act={() => setRemoved(schedule)} />
                  </span>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {removed && (
        <Confirm
          title={`Remove the schedule ${removed.name}?`}
          verb="Remove"
          danger
          onClose={() => setRemoved(null)}
          act={async () => {
            await send("DELETE", pathOf(removed));
            reload();
          }}
        >
          <p>It launches nothing more. The jobs that it has launched go on.</p>
        </Confirm>
      )}
    </ListPage>
  );
}

function Action({ name, of, act }: { name: string; of: Schedule; act: () => void }) {
  return (
    <button type="button" class="link" aria-label={`${name}: ${of.name}`} onClick={act}>
      {name}
    </button>
  );
}

function pathOf(schedule: Schedule): string {
  return `/schedules/${encodeURIComponent(schedule.name)}`;
}
