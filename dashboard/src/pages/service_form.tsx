// Start a service from YAML, or update one: what a replica would buy, then submit.
import { useEffect, useState } from "preact/hooks";
import { get, newKey, send } from "../core/api";
import { go } from "../core/router";
import { ErrorBox } from "../parts/basics";
import type { ParsedTasks, Plan, ServiceSpec } from "../types";
import { PlanView, STORED_USER } from "./launch";

const EXAMPLE = `service:
  readiness_probe: /
  replicas: 2
resources:
  ports: 8080
  cpus: 1+
  use_spot: true
run: |
  python3 -m http.server 8080 --bind $SKYPILOT_NODE_IPS
`;
const MODES: Record<string, string> = {
  rolling: "Rolling: one replica after the other",
  blue_green: "Blue-green: new machines, all at once",
};

/** `name`: of the service to be updated; empty for a new one. */
export function ServiceForm({ name }: { name: string }) {
  const isNew = name === "";
  const path = `/services/${encodeURIComponent(name)}`;
  const [yaml, setYaml] = useState(isNew ? EXAMPLE : "");
  const [given, setGiven] = useState("");
  const [user, setUser] = useState(localStorage.getItem(STORED_USER) ?? "");
  const [auth, setAuth] = useState(true);
  const [mode, setMode] = useState("rolling");
  const [secrets, setSecrets] = useState<string[]>([]);
  const [plan, setPlan] = useState<{ plan: Plan; warnings: string[] } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const [key] = useState(newKey);
  useEffect(() => {
    if (isNew) return;
    get<ServiceSpec>(`${path}/spec`).then((spec) => {
      setYaml(spec.yaml);
      setSecrets(spec.secrets);
    }, setError);
  }, [path]);
  const run = async (action: (tasks: Record<string, unknown>[], warnings: string[]) => Promise<void>) => {
    setBusy(true);
    setError(null);
    try {
      const { tasks, warnings } = await send<ParsedTasks>("POST", "/tasks", { yaml });
      if (tasks.length !== 1) throw new Error("a service is a single task");
      await action(tasks, warnings);
    } catch (problem) {
      setError(problem as Error);
    }
    setBusy(false);
  };
  const check = () =>
    run(async ([task], warnings) => {
      const { service: _, ...replica } = task as Record<string, unknown>;
      const planned = await send<Plan>("POST", "/plan", { name: null, tasks: [replica] });
      // The port is the service's: that it has no effect for a job is not news here.
      const lines = [...warnings, ...planned.warnings].filter((line) => !line.includes("resources.ports"));
      setPlan({ plan: planned, warnings: [...new Set(lines)] });
    });
  const submit = () =>
    run(async ([task]) => {
      if (!isNew) {
        await send("POST", `${path}/update`, { task, key, mode, kept_secrets: secrets });
        return go(path);
      }
      localStorage.setItem(STORED_USER, user);
      const started = await send<{ name: string }>("POST", "/services", { name: given || null, task, user, key, auth });
      go(`/services/${encodeURIComponent(started.name)}`);
    });
  return (
    <>
      <div class="head">
        <h1>{isNew ? "Start a service" : `Update ${name}`}</h1>
      </div>
      <form
        class="launch"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <label class="field">
          Task YAML
          <textarea class="code" rows={20} spellcheck={false} value={yaml} onInput={(event) => (setYaml(event.currentTarget.value), setPlan(null))} required />
        </label>
        {secrets.length > 0 && (
          <p class="muted">
            Secrets that are kept: {secrets.join(", ")}. To replace one, write its new value under <code>secrets:</code>.
          </p>
        )}
        <div class="row">
          {isNew ? (
            <>
              <label class="field">
                Name
                <input value={given} placeholder="mymodel" spellcheck={false} onInput={(event) => setGiven(event.currentTarget.value.trim())} />
              </label>
              <label class="field">
                User
                <input value={user} autocomplete="username" onInput={(event) => setUser(event.currentTarget.value)} />
              </label>
              <label class="check">
                <input type="checkbox" checked={auth} onChange={(event) => setAuth(event.currentTarget.checked)} /> Callers need a token
              </label>
            </>
          ) : (
            <label class="field">
              How
              <select value={mode} onChange={(event) => setMode(event.currentTarget.value)}>
                {Object.entries(MODES).map(([value, text]) => (
                  <option key={value} value={value}>
                    {text}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
        <div class="row">
          <button type="button" disabled={busy} onClick={() => void check()}>
            Show what a replica would buy
          </button>
          <button type="submit" class="primary" disabled={busy}>
            {isNew ? "Start the service" : "Update the service"}
          </button>
        </div>
      </form>
      <ErrorBox error={error} />
      {plan && <PlanView {...plan} />}
      <p class="muted">
        Files of your computer cannot be sent from here: with a <code>workdir</code>, local mounts or <code>tls</code> files, use{" "}
        <code>perdure serve {isNew ? "up" : `update ${name}`}</code>.{!isNew && " Files that were sent before are kept."}
      </p>
    </>
  );
}
