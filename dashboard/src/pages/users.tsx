// Users with their tokens and budgets, and the audit log: for administrators.
import { useState } from "preact/hooks";
import { send } from "../core/api";
import { clockTime, money } from "../core/format";
import { useLive } from "../core/live";
import { may, me } from "../core/me";
import { address, withQuery } from "../core/router";
import { Ago, Confirm, CopyButton, Dialog, Empty, ErrorBox, Meter } from "../parts/basics";
import type { NewToken, Token, User } from "../types";
import { AuditLog } from "./audit";

const ROLES = ["viewer", "user", "operator", "admin"];
const NEVER = () => false;

export function UsersPage() {
  const tab = address.value.query.get("tab") ?? "users";
  const link = (name: string, label: string) => (
    <a class="chip" href={withQuery({ tab: name === "users" ? "" : name, before: "", user: "" })} aria-current={tab === name ? "true" : undefined}>
      {label}
    </a>
  );
  return (
    <>
      <div class="head">
        <h1>Users</h1>
      </div>
      {me.value && !may("administer") ? (
        <Empty title="Only administrators see this page">
          <p>Your role is {me.value.role}.</p>
        </Empty>
      ) : (
        <>
          <div class="filters">
            <div class="chips" role="group" aria-label="Sections">
              {link("users", "Users and tokens")}
              {link("audit", "Audit log")}
            </div>
          </div>
          {tab === "audit" ? <AuditLog /> : <UserList />}
        </>
      )}
    </>
  );
}

function UserList() {
  const users = useLive<User[]>("/users", NEVER, 2000, 30_000);
  const tokens = useLive<Token[]>("/tokens", NEVER, 2000, 30_000);
  const [edited, setEdited] = useState<User | "new" | null>(null);
  const [tokenOf, setTokenOf] = useState<string | null>(null);
  const [revoked, setRevoked] = useState<Token | null>(null);
  const reload = () => {
    users.reload();
    tokens.reload();
  };
  return (
    <>
      <ErrorBox error={users.error ?? tokens.error} />
      <section aria-labelledby="users">
        <div class="head">
          <h2 id="users">Users</h2>
          <button type="button" class="primary" onClick={() => setEdited("new")}>
            Add a user
          </button>
        </div>
        {users.data && !users.data.length && (
          <Empty title="No named users">
            <p>Everybody uses the controller's own token. Add users so that each sees and cancels only their own jobs.</p>
          </Empty>
        )}
        {users.data && users.data.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Users">
            <table class="plain">
              <thead>
                <tr>
                  <th>Name</th>
                  <th>Role</th>
                  <th>State</th>
                  <th class="num">Jobs at most</th>
                  <th class="num">Running at most</th>
                  <th class="num">This month</th>
                  <th class="num">Budget</th>
                  <th>
                    <span class="hidden">Share of the budget</span>
                  </th>
                  <th>
                    <span class="hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {users.data.map((user) => (
                  <UserRow key={user.name} user={user} onEdit={() => setEdited(user)} onToken={() => setTokenOf(user.name)} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {tokens.data && tokens.data.length > 0 && <Tokens rows={tokens.data} onRevoke={setRevoked} />}
      {edited && <UserDialog user={edited === "new" ? null : edited} onClose={() => setEdited(null)} onDone={reload} />}
      {tokenOf && <TokenDialog user={tokenOf} onClose={() => setTokenOf(null)} onDone={reload} />}
      {revoked && (
        <Confirm
          title={`Revoke ${revoked.label || revoked.id}?`}
          verb="Revoke the token"
          danger
          onClose={() => setRevoked(null)}
          act={async () => {
            await send("DELETE", `/tokens/${revoked.id}`);
            reload();
          }}
        >
          <p>
            Whoever uses this token of {revoked.user} is refused from now on; open sessions end. Jobs go on.
          </p>
        </Confirm>
      )}
    </>
  );
}

function UserRow({ user, onEdit, onToken }: { user: User; onEdit: () => void; onToken: () => void }) {
  const spent = user.spent_usd ?? 0;
  const share = user.budget_usd ? spent / user.budget_usd : null;
  const tone = share === null || share < 0.8 ? "" : share < 1 ? "busy" : "bad";
  return (
    <tr>
      <td>
        <a class="name" href={`/jobs?status=all&user=${encodeURIComponent(user.name)}`}>
          {user.name}
        </a>
      </td>
      <td>{user.role}</td>
      <td>
        <span class={`status ${user.disabled_at ? "bad" : "good"}`}>
          <span class="sign" aria-hidden="true">
            {user.disabled_at ? "⊘" : "●"}
          </span>
          {user.disabled_at ? "disabled" : "active"}
        </span>
      </td>
      <td class="num">{user.max_jobs ?? ""}</td>
      <td class="num">{user.max_running_jobs ?? ""}</td>
      <td class="num">{money(spent)}</td>
      <td class="num">{user.budget_usd === null ? "none" : money(user.budget_usd)}</td>
      <td class="meter-cell">
        {share !== null && (
          <>
            <Meter share={share} label={`${Math.round(share * 100)} % of the budget`} />
            {tone && <span class={`status ${tone}`}>{share < 1 ? `${Math.round(share * 100)}% spent` : "spent: new jobs are refused"}</span>}
          </>
        )}
      </td>
      <td>
        <button type="button" class="link" aria-label={`Edit ${user.name}`} onClick={onEdit}>
          Edit
        </button>
        <button type="button" class="link" aria-label={`New token of ${user.name}`} onClick={onToken}>
          New token
        </button>
      </td>
    </tr>
  );
}

function Tokens({ rows, onRevoke }: { rows: Token[]; onRevoke: (token: Token) => void }) {
  const [all, setAll] = useState(false);
  const isOver = (row: Token) => row.revoked_at !== null || (row.expires_at !== null && Date.parse(row.expires_at) < Date.now());
  const shown = rows.filter((row) => all || !isOver(row));
  return (
    <section aria-labelledby="tokens">
      <h2 id="tokens">Tokens</h2>
      <div class="filters">
        <label class="check">
          <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> Also revoked and expired ones
        </label>
      </div>
      {!shown.length && <p class="muted">No token is valid.</p>}
      {shown.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Tokens">
          <table class="plain">
            <thead>
              <tr>
                <th>Id</th>
                <th>User</th>
                <th>At most</th>
                <th>For</th>
                <th>Expires</th>
                <th>Last used</th>
                <th>
                  <span class="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => (
                <tr key={row.id}>
                  <td>
                    <code>{row.id}</code>
                  </td>
                  <td>{row.user}</td>
                  <td>{row.role}</td>
                  <td>{row.label}</td>
                  <td>{row.expires_at ? clockTime(row.expires_at, true).slice(0, 16) : "never"}</td>
                  <td>{row.last_used_at ? <Ago at={row.last_used_at} /> : "never"}</td>
                  <td>
                    {isOver(row) ? (
                      <span class="muted">{row.revoked_at ? "revoked" : "expired"}</span>
                    ) : (
                      <button type="button" class="link" aria-label={`Revoke token ${row.id}`} onClick={() => onRevoke(row)}>
                        Revoke
                      </button>
                    )}
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

/** The number in a field; null if it is empty. */
function numberOf(form: FormData, name: string): number | null {
  const text = String(form.get(name) ?? "").trim();
  return text === "" ? null : Number(text);
}

function UserDialog({ user, onClose, onDone }: { user: User | null; onClose: () => void; onDone: () => void }) {
  const act = async () => {
    const form = new FormData(document.querySelector("dialog[open] form") as HTMLFormElement);
    const body: Record<string, unknown> = {
      role: form.get("role"),
      max_jobs: numberOf(form, "max_jobs"),
      max_running_jobs: numberOf(form, "max_running_jobs"),
    };
    const [budget, then] = [numberOf(form, "budget_usd"), String(form.get("budget_action"))];
    if (budget !== (user?.budget_usd ?? null)) body.budget_usd = budget;
    if (then !== (user?.budget_action ?? "keep")) body.budget_action = then;
    if (user) await send("PATCH", `/users/${encodeURIComponent(user.name)}`, { ...body, disabled: form.get("disabled") !== null });
    else await send("POST", "/users", { ...body, name: String(form.get("name")).trim() });
    onDone();
  };
  const limit = (name: string, label: string, value: number | null | undefined, step = "1") => (
    <label class="field">
      {label}
      <input class="small" type="number" min="0" step={step} name={name} defaultValue={value === null || value === undefined ? "" : String(value)} />
    </label>
  );
  return (
    <Confirm title={user ? user.name : "Add a user"} verb={user ? "Save" : "Add the user"} onClose={onClose} act={act}>
      {!user && (
        <label class="field">
          Name
          <input name="name" required autocomplete="off" spellcheck={false} maxLength={64} />
        </label>
      )}
      <label class="field">
        Role
        <select name="role" defaultValue={user?.role ?? "user"}>
          {ROLES.map((role) => (
            <option key={role} selected={role === (user?.role ?? "user")}>
              {role}
            </option>
          ))}
        </select>
      </label>
      <div class="row">
        {limit("max_jobs", "Jobs at most", user?.max_jobs)}
        {limit("max_running_jobs", "Running at most", user?.max_running_jobs)}
        {limit("budget_usd", "USD a month", user?.budget_usd, "any")}
      </div>
      <label class="field">
        Once it is spent, new jobs are refused, and
        <select name="budget_action">
          <option value="keep" selected={user?.budget_action !== "end"}>
            running jobs go on
          </option>
          <option value="end" selected={user?.budget_action === "end"}>
            running jobs save and end
          </option>
        </select>
      </label>
      {user && (
        <label class="check">
          <input type="checkbox" name="disabled" defaultChecked={user.disabled_at !== null} /> Disabled: all tokens are refused
        </label>
      )}
    </Confirm>
  );
}

function TokenDialog({ user, onClose, onDone }: { user: string; onClose: () => void; onDone: () => void }) {
  const [made, setMade] = useState<NewToken | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const role = String(form.get("role"));
    try {
      const body = { user, label: String(form.get("label")).trim(), days: numberOf(form, "days"), role: role || null };
      setMade(await send<NewToken>("POST", "/tokens", body));
      onDone();
    } catch (problem) {
      setError(problem as Error);
    }
  };
  if (made)
    return (
      <Dialog title={`Token of ${user}`} onClose={onClose}>
        <p>It is shown this once. Whoever has it acts as {user}.</p>
        <pre class="code">{made.token}</pre>
        <form method="dialog" class="buttons">
          <CopyButton text={made.token} />
          <button class="primary">Close</button>
        </form>
      </Dialog>
    );
  return (
    <Dialog title={`New token of ${user}`} onClose={onClose}>
      <form onSubmit={submit}>
        <label class="field">
          What it is for
          <input name="label" autocomplete="off" maxLength={200} />
        </label>
        <div class="row">
          <label class="field">
            May at most
            <select name="role">
              <option value="">what {user} may</option>
              {ROLES.map((role) => (
                <option key={role}>{role}</option>
              ))}
            </select>
          </label>
          <label class="field">
            Days
            <input class="small" type="number" name="days" min="0.001" max="3650" step="any" defaultValue="90" />
          </label>
        </div>
        <p class="muted">Without days, it is valid until it is revoked.</p>
        <ErrorBox error={error} />
        <div class="buttons">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button class="primary">Create the token</button>
        </div>
      </form>
    </Dialog>
  );
}
