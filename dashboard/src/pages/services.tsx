// The services, and the replicas of one.
import { useState } from "preact/hooks";
import { get, send } from "../core/api";
import { count, duration, money } from "../core/format";
import { useLive } from "../core/live";
import { mayChange } from "../core/me";
import { go } from "../core/router";
import { Ago, Confirm, CopyButton, Empty, ErrorBox } from "../parts/basics";
import type { Service, ServiceEvent, ServiceList, ServiceReplica } from "../types";

const STATUSES: Record<string, [string, string]> = {
  READY: ["●", "good"],
  REPLICA_INIT: ["◔", "busy"],
  NO_REPLICA: ["○", "wait"],
  SHUTTING_DOWN: ["◌", "wait"],
  DOWN: ["⊘", "wait"],
  PENDING: ["○", "wait"],
  PROVISIONING: ["◔", "busy"],
  STARTING: ["◔", "busy"],
  NOT_READY: ["↻", "busy"],
  PREEMPTED: ["✕", "bad"],
  TERMINATED: ["⊘", "wait"],
};

function State({ status }: { status: string }) {
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

const pathOf = (name: string) => `/services/${encodeURIComponent(name)}`;

export function ServicesPage() {
  const { data, error } = useLive<ServiceList>("/services", () => true, 1000, 5_000);
  return (
    <>
      <div class="head">
        <h1>Services</h1>
      </div>
      <ErrorBox error={error} />
      {data && !data.services.length && (
        <Empty title="No services">
          <p>A service keeps replicas of a program behind one endpoint. Start one from a terminal:</p>
          <pre class="command">perdure serve up -n mymodel service.yaml</pre>
        </Empty>
      )}
      {data && data.services.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Services">
          <table class="plain">
            <thead>
              <tr>
                <th>Service</th>
                <th>Status</th>
                <th class="num">Replicas</th>
                <th class="num">Requests now</th>
                <th class="num">Last minute</th>
                <th class="num">Per hour</th>
                <th class="num">Version</th>
                <th>Endpoint</th>
                <th>User</th>
              </tr>
            </thead>
            <tbody>
              {data.services.map((service) => (
                <tr key={service.service_id}>
                  <td>
                    <a class="name" href={pathOf(service.name)}>
                      {service.name}
                    </a>
                  </td>
                  <td>
                    <State status={service.status} />
                  </td>
                  <td class="num">
                    {service.ready_replicas}/{service.target_replicas}
                  </td>
                  <td class="num">{count(service.requests)}</td>
                  <td class="num">{count(service.recent_requests)}</td>
                  <td class="num">{money(service.price_per_hour)}</td>
                  <td class="num">{service.version}</td>
                  <td>{service.endpoint}</td>
                  <td>{service.user}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

export function ServicePage({ name }: { name: string }) {
  const path = pathOf(name);
  const { data: service, error, reload } = useLive<Service>(path, () => true, 1000, 5_000);
  const timeline = useLive<{ entries: ServiceEvent[] }>(`${path}/timeline`, () => true, 1000, 5_000);
  const [isEnding, setEnding] = useState(false);
  const [replaced, setReplaced] = useState<ServiceReplica | null>(null);
  const isMine = service !== null && mayChange(service.user);
  const isUp = service !== null && !["DOWN", "SHUTTING_DOWN"].includes(service.status);
  return (
    <>
      <div class="head">
        <h1>{name}</h1>
        {isMine && isUp && (
          <div class="actions">
            {service.has_token && <TokenButton path={path} />}
            <button type="button" class="danger" onClick={() => setEnding(true)}>
              Take down …
            </button>
          </div>
        )}
      </div>
      <ErrorBox error={error} />
      {service && (
        <>
          <p>
            <State status={service.status} /> <span class="part">{service.autoscaling_policy}</span>{" "}
            <span class="part">{service.requested_resources}</span>
          </p>
          {service.message && <p class={`message ${service.status === "READY" ? "" : "bad"}`}>{service.message}</p>}
          <dl class="facts">
            {service.endpoint && <Fact name="Endpoint">{service.endpoint}</Fact>}
            <Fact name="Replicas">
              {service.ready_replicas} of {service.target_replicas} ready
            </Fact>
            <Fact name="Requests now">{count(service.requests)}</Fact>
            <Fact name="Last minute">{count(service.recent_requests)}</Fact>
            <Fact name="Per hour">{money(service.price_per_hour)}</Fact>
            <Fact name="Version">{service.version}</Fact>
            {service.uptime_s !== null && <Fact name="Answers since">{duration(service.uptime_s)}</Fact>}
            <Fact name="Balancing">{service.load_balancing_policy.replaceAll("_", " ")}</Fact>
            <Fact name="User">{service.user}</Fact>
          </dl>
          <h2>Replicas</h2>
          {service.replicas.length ? (
            <Replicas replicas={service.replicas} mayEnd={isMine && isUp} onEnd={setReplaced} />
          ) : (
            <p class="muted">No replicas: the next request starts one.</p>
          )}
          <h2>Timeline</h2>
          <ErrorBox error={timeline.error} />
          {timeline.data && <Timeline entries={timeline.data.entries} />}
        </>
      )}
      {isEnding && (
        <Confirm
          title={`Take down ${name}?`}
          verb="Take down"
          danger
          onClose={() => setEnding(false)}
          act={async () => {
            await send("POST", `${path}/down`);
            go("/services");
          }}
        >
          <p>Its endpoint closes, and its replicas end. Their logs stay readable.</p>
        </Confirm>
      )}
      {replaced && (
        <Confirm
          title={`End replica ${replaced.number} of ${name}?`}
          verb="End the replica"
          danger
          onClose={() => setReplaced(null)}
          act={async () => {
            await send("POST", `${path}/replicas/${replaced.number}/terminate`);
            reload();
          }}
        >
          <p>It answers its last requests first. Another replica takes its place if the service needs it.</p>
        </Confirm>
      )}
    </>
  );
}

/** The token is asked for only when somebody wants it, which the audit log records. */
function TokenButton({ path }: { path: string }) {
  const [token, setToken] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const show = async () => {
    try {
      setToken((await get<{ token: string }>(`${path}/token`)).token);
    } catch (problem) {
      setError(problem as Error);
    }
  };
  if (error) return <ErrorBox error={error} />;
  if (token !== null) return <CopyButton text={token} label="Copy the token" />;
  return (
    <button type="button" onClick={() => void show()}>
      Token
    </button>
  );
}

function Replicas({ replicas, mayEnd, onEnd }: { replicas: ServiceReplica[]; mayEnd: boolean; onEnd: (one: ServiceReplica) => void }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Replicas">
      <table class="plain">
        <thead>
          <tr>
            <th class="num">#</th>
            <th>Status</th>
            <th class="num">Version</th>
            <th class="num">Requests</th>
            <th>Where</th>
            <th>Machine</th>
            <th>Launched</th>
            <th>Log</th>
            <th>
              <span class="hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {[...replicas].reverse().map((one) => (
            <tr key={one.number}>
              <td class="num">{one.number}</td>
              <td>
                <State status={one.status} />
                {one.message && one.status !== "TERMINATED" && <div class="muted">{one.message}</div>}
              </td>
              <td class="num">{one.version}</td>
              <td class="num">{count(one.requests)}</td>
              <td>{one.infra}</td>
              <td>{one.resources}</td>
              <td>
                <Ago at={one.launched_at} suffix="" />
              </td>
              <td>{one.job_id !== null && <a href={`/jobs/${one.job_id}`}>job {one.job_id}</a>}</td>
              <td>
                {mayEnd && !one.ended_at && one.status !== "SHUTTING_DOWN" && (
                  <button type="button" class="link" aria-label={`End replica ${one.number}`} onClick={() => onEnd(one)}>
                    End
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Timeline({ entries }: { entries: ServiceEvent[] }) {
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="Timeline">
      <table class="plain">
        <thead>
          <tr>
            <th>When</th>
            <th>What</th>
            <th class="num">Version</th>
            <th class="num">Replica</th>
            <th>Why</th>
          </tr>
        </thead>
        <tbody>
          {[...entries].reverse().map((entry, index) => (
            <tr key={entries.length - index}>
              <td>
                <Ago at={entry.at} />
              </td>
              <td>{entry.kind.replace("service.", "").replaceAll("_", " ")}</td>
              <td class="num">{entry.version ?? ""}</td>
              <td class="num">{entry.replica ?? ""}</td>
              <td class="prose">{entry.message}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Fact({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
