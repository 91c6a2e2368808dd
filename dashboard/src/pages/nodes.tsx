// The machines that exist, those of the newest jobs first.
import { clockTime, duration, money, place, plural, seconds } from "../core/format";
import { now, useLive } from "../core/live";
import { address, withQuery } from "../core/router";
import { Ago, Empty, ErrorBox } from "../parts/basics";
import type { FleetNode, NodePage as Page } from "../types";

export function NodesPage() {
  const before = address.value.query.get("before");
  const { data, error } = useLive<Page>(`/nodes?limit=50${before ? `&before=${encodeURIComponent(before)}` : ""}`, () => true, 2000, 30_000);
  return (
    <>
      <div class="head">
        <h1>Nodes</h1>
      </div>
      <ErrorBox error={error} />
      {data && !data.nodes.length && (
        <Empty title="No machine exists">
          <p>Machines are bought when a job needs them, and end with it.</p>
        </Empty>
      )}
      {data && data.nodes.length > 0 && (
        <>
          <p class="muted">{plural(data.nodes.length, "machine")} on this page</p>
          <div class="scroll" tabIndex={0} role="region" aria-label="Machines">
            <table class="plain">
              <thead>
                <tr>
                  <th>Job</th>
                  <th class="num" title="Attempt and rank">
                    #
                  </th>
                  <th>State</th>
                  <th>Where</th>
                  <th>Machine</th>
                  <th class="num">$/h</th>
                  <th>Up</th>
                  <th>Address</th>
                  <th>Machine id</th>
                  <th>User</th>
                </tr>
              </thead>
              <tbody>
                {data.nodes.map((node) => (
                  <tr key={`${node.job_id}.${node.task_index}.${node.generation}.${node.rank}`}>
                    <td>
                      <a href={`/jobs/${node.job_id}`}>{node.name}</a> <span class="part">{node.job_id}</span>
                    </td>
                    <td class="num">
                      {node.generation}.{node.rank}
                    </td>
                    <td>
                      <State node={node} />
                    </td>
                    <td>
                      {place(node)} <span class="part">{node.market}</span>
                    </td>
                    <td>{node.instance_type}</td>
                    <td class="num">{money(node.price_per_hour)}</td>
                    <td>{node.launched_at && <Ago at={node.launched_at} suffix="" />}</td>
                    <td>{node.ip}</td>
                    <td>
                      <code>{node.instance_id}</code>
                    </td>
                    <td>{node.user}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <nav class="pager" aria-label="Pages">
            {before && <a href={withQuery({ before: "" })}>Newest</a>}
            {data.next !== null && <a href={withQuery({ before: String(data.next) })}>Older</a>}
          </nav>
        </>
      )}
    </>
  );
}

function State({ node }: { node: FleetNode }) {
  if (node.notice_deadline)
    return (
      <span class="status bad" title={clockTime(node.notice_deadline, true)}>
        <span class="sign" aria-hidden="true">
          ▼
        </span>
        {seconds(node.notice_deadline) > now.value ? `taken in ${duration(seconds(node.notice_deadline) - now.value)}` : "being taken"}
      </span>
    );
  if (!node.connected && node.phase !== "not_connected" && node.phase !== "ended")
    return (
      <span class="status busy">
        <span class="sign" aria-hidden="true">
          ?
        </span>
        disconnected
      </span>
    );
  const word = node.instance_id === null ? "requested" : node.phase === "not_connected" ? "booting" : node.phase;
  return (
    <span class={`status ${word === "running" ? "good" : "wait"}`}>
      <span class="sign" aria-hidden="true">
        {word === "running" ? "●" : "◔"}
      </span>
      {word}
    </span>
  );
}
