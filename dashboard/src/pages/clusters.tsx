// The clusters, and the queue of one.
import { useState } from "preact/hooks";
import { send } from "../core/api";
import { duration, plural } from "../core/format";
import { mayChange } from "../core/me";
import { useLive } from "../core/live";
import { go } from "../core/router";
import { Ago, Confirm, Empty, Status } from "../parts/basics";
import { Fact, ListPage, Table, ThingPage } from "../parts/things";
import type { Cluster, ClusterJob, ClusterList, ClusterQueue } from "../types";

function autostop(cluster: Cluster): string {
  if (cluster.autostop_s === null) return "never";
  return `${cluster.autostop_down ? "down" : "stop"} after ${duration(cluster.autostop_s)} idle`;
}

export function ClustersPage() {
  const { data, error } = useLive<ClusterList>("/clusters", () => true, 1000, 15_000);
  const empty = data && !data.clusters.length && (
    <Empty title="No clusters">
      <p>A cluster is a set of machines that stays, with a queue of jobs. Launch one from a terminal:</p>
      <pre class="command">perdure launch -c dev task.yaml</pre>
    </Empty>
  );
  return (
    <ListPage title="Clusters" error={error} empty={empty}>
      {data && (
        <Table label="Clusters" heads={["Cluster", "Status", "Where", "Machines", "Launched", "Autostop", "User"]}>
          {data.clusters.map((cluster) => (
            <tr key={cluster.cluster_id}>
              <td>
                <a class="name" href={`/clusters/${encodeURIComponent(cluster.name)}`}>
                  {cluster.name}
                </a>
              </td>
              <td>
                <Status status={cluster.status} />
              </td>
              <td>{cluster.infra}</td>
              <td>{cluster.resources}</td>
              <td>
                <Ago at={cluster.launched_at} suffix="" />
              </td>
              <td>{autostop(cluster)}</td>
              <td>{cluster.user}</td>
            </tr>
          ))}
        </Table>
      )}
    </ListPage>
  );
}

type Action = "stop" | "start" | "down";
const ACTIONS: Record<Action, [string, string]> = {
  stop: ["Stop", "Its machines end. Jobs that run wait in the queue, and begin again when the cluster is started."],
  start: ["Start", "Machines are bought again, and the queue goes on."],
  down: ["Take down", "Its machines end, and its jobs are cancelled. The queue and the logs stay readable."],
};

export function ClusterPage({ name }: { name: string }) {
  const path = `/clusters/${encodeURIComponent(name)}`;
  const { data, error, reload } = useLive<ClusterQueue>(`${path}/jobs`, () => true, 1000, 15_000);
  const [action, setAction] = useState<Action | null>(null);
  const [cancelled, setCancelled] = useState<ClusterJob | null>(null);
  const cluster = data?.cluster;
  const isUp = cluster && ["UP", "INIT"].includes(cluster.status);
  const offered: Action[] = !cluster || cluster.status === "DOWN" ? [] : [isUp ? "stop" : "start", "down"];
  const act = async (what: Action) => {
    await send("POST", `${path}/${what}`);
    if (what === "down") go("/clusters");
    else reload();
  };
  const actions =
    cluster &&
    mayChange(cluster.user) &&
    offered.map((what) => (
      <button key={what} type="button" class={what === "down" ? "danger" : ""} onClick={() => setAction(what)}>
        {ACTIONS[what][0]} …
      </button>
    ));
  return (
    <ThingPage
      name={name}
      error={error}
      actions={actions}
      status={cluster ? cluster.status : null}
      parts={cluster ? [cluster.infra, cluster.resources] : []}
      message={cluster?.message}
    >
      {cluster && (
        <>
          <dl class="facts">
            <Fact name="User">{cluster.user}</Fact>
            <Fact name="Nodes">{cluster.num_nodes}</Fact>
            <Fact name="Launched">
              <Ago at={cluster.launched_at} />
            </Fact>
            <Fact name="Autostop">{autostop(cluster)}</Fact>
            {cluster.head_ip && <Fact name="Head">{cluster.head_ip}</Fact>}
            {cluster.host_job_id !== null && (
              <Fact name="Machines">
                <a href={`/jobs/${cluster.host_job_id}`}>job {cluster.host_job_id}</a>
              </Fact>
            )}
          </dl>
          <h2>Queue</h2>
          {data.jobs.length ? (
            <Queue jobs={data.jobs} mayCancel={mayChange(cluster.user)} onCancel={setCancelled} />
          ) : (
            <p class="muted">
              No jobs yet: <code>perdure exec {name} task.yaml</code>
            </p>
          )}
        </>
      )}
      {action && (
        <Confirm
          title={`${ACTIONS[action][0]} ${name}?`}
          verb={ACTIONS[action][0]}
          danger={action === "down"}
          onClose={() => setAction(null)}
          act={() => act(action)}
        >
          <p>{ACTIONS[action][1]}</p>
        </Confirm>
      )}
      {cancelled && (
        <Confirm
          title={`Cancel job ${cancelled.number} of ${name}?`}
          verb="Cancel the job"
          danger
          onClose={() => setCancelled(null)}
          act={async () => {
            await send("POST", `${path}/cancel`, { numbers: [cancelled.number] });
            reload();
          }}
        >
          <p>{cancelled.name}</p>
        </Confirm>
      )}
    </ThingPage>
  );
}

function Queue({ jobs, mayCancel, onCancel }: { jobs: ClusterJob[]; mayCancel: boolean; onCancel: (job: ClusterJob) => void }) {
  return (
    <>
      <p class="muted">{plural(jobs.length, "job")}, the newest first</p>
      <Table label="Jobs of the cluster" heads={["#", "Job", "Status", "Submitted", "#Ran", "Needs", "User", "(Actions)"]}>
        {jobs.map((job) => (
          <tr key={job.number}>
            <td class="num">{job.number}</td>
            <td>
              <a href={`/jobs/${job.job_id}`}>{job.name}</a>
              {job.message && job.status !== "SUCCEEDED" && <div class="muted">{job.message}</div>}
            </td>
            <td>
              <Status status={job.status} />
            </td>
            <td>
              <Ago at={job.submitted_at} suffix="" />
            </td>
            <td class="num">{job.duration_s ? duration(job.duration_s) : ""}</td>
            <td>{job.resources}</td>
            <td>{job.user}</td>
            <td>
              {mayCancel && !job.has_ended && (
                <button type="button" class="link" aria-label={`Cancel job ${job.number}`} onClick={() => onCancel(job)}>
                  Cancel
                </button>
              )}
            </td>
          </tr>
        ))}
      </Table>
    </>
  );
}
