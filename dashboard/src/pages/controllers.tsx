// The controllers of the database, and the log of the one that answers.
import { useEffect, useState } from "preact/hooks";
import { open } from "../core/api";
import { clockTime, count } from "../core/format";
import { useLive } from "../core/live";
import { may, me } from "../core/me";
import { Ago, ErrorBox } from "../parts/basics";
import type { ControllerLease } from "../types";

const TAIL = 200;

interface Info {
  version: string;
  id: string;
  pid: number;
  started_at: string;
  home: string;
  endpoint: string;
  overdue: string | null;
  rejected_frames: number;
  set_aside: number;
  config_changed?: boolean;
  backup: { to: string; last: string | null; error: string | null } | null;
  probes: { count: number; cost_usd: number; budget_usd: number } | null;
}

export function ControllersPage() {
  const { data, error } = useLive<ControllerLease[]>("/controllers", () => false, 2000, 10_000);
  const { data: info, error: infoError } = useLive<Info>("/controller", () => false, 2000, 10_000);
  const isReady = (data || error) && (info || infoError); // nothing moves when the second answer comes
  return (
    <>
      <div class="head">
        <h1>Controllers</h1>
      </div>
      <ErrorBox error={error} />
      {info?.overdue && <p class="message bad">This controller does not keep up: {info.overdue}</p>}
      {info?.config_changed && <p class="message">config.yaml was changed after this controller had read it: restart it to apply the change.</p>}
      {info?.backup?.error && <p class="message bad">The newest backup failed: {info.backup.error}</p>}
      {isReady && data && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Controllers">
          <table class="plain">
            <thead>
              <tr>
                <th>State</th>
                <th>Endpoint</th>
                <th>Up</th>
                <th>Lease until</th>
                <th>Schema</th>
                <th>Id</th>
              </tr>
            </thead>
            <tbody>
              {data.map((row) => (
                <tr key={row.id}>
                  <td>
                    <span class={`status ${row.is_alive ? "good" : "bad"}`}>
                      <span class="sign" aria-hidden="true">
                        {row.is_alive ? "●" : "✕"}
                      </span>
                      {row.is_alive ? "holds its lease" : "lease lost"}
                    </span>
                  </td>
                  <td>{row.endpoint}</td>
                  <td>
                    <Ago at={row.started_at} suffix="" />
                  </td>
                  <td>{clockTime(row.lease_until)}</td>
                  <td>{row.schema_revision}</td>
                  <td>
                    <code>{row.id}</code>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {isReady && info && (
        <dl class="facts">
          <Fact name="Answers here">process {info.pid}</Fact>
          <Fact name="Version">{info.version}</Fact>
          <Fact name="Home">{info.home}</Fact>
          <Fact name="Rejected frames">{count(info.rejected_frames)}</Fact>
          <Fact name="Set aside">{count(info.set_aside)}</Fact>
          {info.probes && <Fact name="Probes, 24 h">{count(info.probes.count)}</Fact>}
          {info.backup && <Fact name="Last backup">{info.backup.last ? <Ago at={info.backup.last} /> : "none yet"}</Fact>}
        </dl>
      )}
      {isReady && may("administer") && !me.value?.has_users && (
        <p>
          Several people? <a href="/users">Users and the audit log</a>
        </p>
      )}
      {isReady && may("operate") && <ControllerLog />}
    </>
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

interface Line {
  timestamp?: string;
  level?: string;
  event?: string;
  [name: string]: unknown;
}

function ControllerLog() {
  const [lines, setLines] = useState<Line[] | null>(null);
  const [onlyProblems, setOnlyProblems] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const load = async () => {
    try {
      const text = await (await open(`/controller/logs?tail=${TAIL}`)).text();
      setLines(text.split("\n").filter(Boolean).map(parse).reverse());
      setError(null);
    } catch (problem) {
      setError(problem as Error);
    }
  };
  useEffect(() => void load(), []);
  const shown = (lines ?? []).filter((line) => !onlyProblems || (line.level !== "info" && line.level !== "debug"));
  return (
    <section aria-labelledby="log">
      <h2 id="log">Log</h2>
      <div class="filters">
        <label class="check">
          <input type="checkbox" checked={onlyProblems} onChange={(event) => setOnlyProblems(event.currentTarget.checked)} /> Only warnings and errors
        </label>
        <button type="button" onClick={() => void load()}>
          Read again
        </button>
      </div>
      <ErrorBox error={error} />
      {lines && !shown.length && <p class="muted">Nothing in the last {TAIL} lines.</p>}
      {shown.length > 0 && (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Log of the controller">
          <table class="plain">
            <thead>
              <tr>
                <th>Time</th>
                <th>Level</th>
                <th>Event</th>
                <th>Details</th>
              </tr>
            </thead>
            <tbody>
              {shown.map(({ timestamp, level, event, ...rest }, index) => (
                <tr key={lines && lines.length - index}>
                  <td>{timestamp ? clockTime(timestamp, true) : ""}</td>
                  <td>{level}</td>
                  <td>
                    <code>{event}</code>
                  </td>
                  <td class="pre prose">
                    {Object.entries(rest)
                      .map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)
                      .join("  ")}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function parse(text: string): Line {
  try {
    return JSON.parse(text) as Line;
  } catch {
    return { event: text };
  }
}
