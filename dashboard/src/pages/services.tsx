// The services, and the replicas of one.
import { useState } from "preact/hooks";
import { get, send } from "../core/api";
import { count, duration, money } from "../core/format";
import { useLive } from "../core/live";
import { may, mayChange } from "../core/me";
import { go } from "../core/router";
import { Ago, Confirm, CopyButton, Empty, ErrorBox, Status } from "../parts/basics";
import { Fact, ListPage, Table, ThingPage } from "../parts/things";
import type { Service, ServiceEvent, ServiceList, ServiceReplica } from "../types";

const pathOf = (name: string) => `/services/${encodeURIComponent(name)}`;

export function ServicesPage() {
  const { data, error } = useLive<ServiceList>("/services", () => true, 1000, 5_000);
  const empty = data && !data.services.length && (
    <Empty title="No services">
      <p>A service keeps replicas of a program behind one endpoint. Start one here, or from a terminal:</p>
      <pre class="command">perdure serve up -n mymodel service.yaml</pre>
    </Empty>
  );
  return (
    <ListPage title="Services" error={error} empty={empty} actions={may("run") && <a class="button" href="/launch?service=">Start a service</a>}>
      {data && (
        <Table label="Services" heads={["Service", "Status", "#Replicas", "#Requests now", "#Last minute", "#Per hour", "#Version", "Endpoint", "User"]}>
          {data.services.map((service) => (
            <tr key={service.service_id}>
              <td>
                <a class="name" href={pathOf(service.name)}>
                  {service.name}
                </a>
              </td>
              <td>
                <Status status={service.status} />
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
        </Table>
      )}
    </ListPage>
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
  const actions = isMine && isUp && (
    <>
      {service.has_token && <TokenButton path={path} />}
      <a class="button" href={`/launch?service=${encodeURIComponent(name)}`}>
        Update
      </a>
      <button type="button" class="danger" onClick={() => setEnding(true)}>
        Take down …
      </button>
    </>
  );
  return (
    <ThingPage
      name={name}
      error={error}
      actions={actions}
      status={service && service.status}
      parts={service ? [service.autoscaling_policy, service.requested_resources] : []}
      message={service?.message}
      isBad={service?.status !== "READY"}
    >
      {service && (
        <>
          <dl class="facts">
            {service.endpoint && <Fact name="Endpoint">{service.endpoint}</Fact>}
            <Fact name="Replicas">
              {service.ready_replicas} of {service.target_replicas} ready
            </Fact>
            <Fact name="Requests now">{count(service.requests)}</Fact>
            {service.waiting_requests > 0 && <Fact name="Waiting">{count(service.waiting_requests)}</Fact>}
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
          <ProxyLog path={path} />
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
    </ThingPage>
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

/** What the proxy has answered. It is read only while somebody looks. */
function ProxyLog({ path }: { path: string }) {
  const [isOpen, setOpen] = useState(false);
  const { data, error } = useLive<{ text: string }>(isOpen ? `${path}/proxy-log?tail=200` : null, () => true, 1000, 5_000);
  return (
    <details class="fold" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Log of the proxy</summary>
      <ErrorBox error={error} />
      {data && (
        <pre class="code tall" tabIndex={0} role="region" aria-label="Log of the proxy">
          {data.text || "No requests yet."}
        </pre>
      )}
    </details>
  );
}

function Replicas({ replicas, mayEnd, onEnd }: { replicas: ServiceReplica[]; mayEnd: boolean; onEnd: (one: ServiceReplica) => void }) {
  return (
    <Table label="Replicas" heads={["#", "Status", "#Version", "#Requests", "Where", "Machine", "Launched", "Log", "(Actions)"]}>
      {[...replicas].reverse().map((one) => (
        <tr key={one.number}>
          <td class="num">{one.number}</td>
          <td>
            <Status status={one.status} />
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
    </Table>
  );
}

function Timeline({ entries }: { entries: ServiceEvent[] }) {
  return (
    <Table label="Timeline" heads={["When", "What", "#Version", "#Replica", "Why"]} tall>
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
    </Table>
  );
}
