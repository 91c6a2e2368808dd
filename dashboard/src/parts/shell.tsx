// What surrounds every page: navigation, the live sign, theme, help, sign-in.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { keepAsked, offered, signIn, signInProvider, signOut, signedIn } from "../core/api";
import { setShortcuts, shortcutsOn, useKeys } from "../core/keyboard";
import { isLive } from "../core/live";
import { may, me } from "../core/me";
import { address, go } from "../core/router";
import { Dialog, ErrorBox } from "./basics";

export const VIEWS = [
  { path: "/jobs", name: "Jobs", key: "j" },
  { path: "/clusters", name: "Clusters", key: "c" },
  { path: "/services", name: "Services", key: "v" },
  { path: "/schedules", name: "Schedules", key: "d" },
  { path: "/market", name: "Market", key: "m" },
  { path: "/savings", name: "Savings", key: "s" },
  { path: "/nodes", name: "Nodes", key: "n" },
  { path: "/controllers", name: "Controllers", key: "o" },
];
const USERS = { path: "/users", name: "Users", key: "u" };

/** One user alone needs no page of users. */
function views() {
  return me.value?.has_users && may("administer") ? [...VIEWS, USERS] : VIEWS;
}

const THEMES = ["auto", "light", "dark"];
const theme = signal(document.documentElement.dataset.theme ?? "auto");
const isHelpOpen = signal(false);

function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] as string;
  if (theme.value === "auto") {
    localStorage.removeItem("perdure.theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("perdure.theme", theme.value);
    document.documentElement.dataset.theme = theme.value;
  }
}

export function Shell({ children }: { children: ComponentChildren }) {
  useKeys({
    "?": () => (isHelpOpen.value = true),
    t: nextTheme,
    "/": () => document.querySelector<HTMLInputElement>("[data-search]")?.focus(),
    ...Object.fromEntries([...VIEWS, USERS].map(({ key, path }) => [`g ${key}`, () => go(path)])),
    "g l": () => go("/launch"),
  });
  const path = address.value.path;
  const isIn = (view: string) => path === view || path.startsWith(`${view}/`) || (view === "/jobs" && path === "/");
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="/jobs">
          <svg viewBox="0 0 32 32" width="20" height="20" aria-hidden="true">
            <path d="M4 22h8V10h8v12h8" />
          </svg>
          Perdure
        </a>
        <nav aria-label="Views">
          {views().map((view) => (
            <a key={view.path} href={view.path} aria-current={isIn(view.path) ? "page" : undefined}>
              {view.name}
            </a>
          ))}
        </nav>
        <div class="tools">
          <span class={`live ${isLive.value ? "on" : ""}`} role="status">
            <span class="dot" aria-hidden="true" />
            {isLive.value ? "live" : "connecting"}
          </span>
          <button type="button" class="quiet" onClick={nextTheme} aria-label={`Theme: ${theme.value}`} title={`Theme: ${theme.value}`}>
            {theme.value === "dark" ? "☾" : theme.value === "light" ? "☀" : "◐"}
          </button>
          <button type="button" class="quiet" onClick={() => (isHelpOpen.value = true)} aria-label="Keyboard shortcuts" title="Keyboard shortcuts">
            ?
          </button>
          {me.value?.has_users && (
            <span class="part" title={`Signed in as ${me.value.user}, role ${me.value.role}`}>
              {me.value.user}
            </span>
          )}
          <button type="button" class="quiet words" onClick={() => void signOut()}>
            Sign out
          </button>
        </div>
      </header>
      {!isLive.value && <Offline />}
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      {isHelpOpen.value && <Help />}
    </>
  );
}

/** Shown after a moment without a connection, so that a new page does not flicker. */
function Offline() {
  return (
    <div class="offline" role="status">
      The controller does not answer. What you see may be old; this page continues by itself.
    </div>
  );
}

const KEYS: [string, string][] = [
  ["/", "search"],
  ["j  k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["c", "cancel what is selected, or this job"],
  ["[  ]", "previous, next attempt"],
  ["l", "log of this job"],
  ["f", "follow the log"],
  ["n  N", "next, previous hit in the log"],
  ["g j", "jobs (c clusters, v services, d schedules, m market, s savings, n nodes, o controllers, u users, l launch)"],
  ["t", "theme"],
  ["?", "this help"],
];

function Help() {
  return (
    <Dialog title="Keyboard" onClose={() => (isHelpOpen.value = false)}>
      <dl class="keys">
        {KEYS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split("  ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input type="checkbox" checked={shortcutsOn.value} onChange={(event) => setShortcuts(event.currentTarget.checked)} /> Shortcuts on
      </label>
      <form method="dialog" class="buttons">
        <button class="primary">Close</button>
      </form>
    </Dialog>
  );
}

/** What a browser that is not signed in sees. */
export function SignInPage({ problem }: { problem: string | null }) {
  const [error, setError] = useState<Error | null>(problem ? new Error(problem) : null);
  const [provider, setProvider] = useState<string | null>(null);
  useEffect(() => {
    signInProvider().then(setProvider, () => undefined);
  }, []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.target as HTMLFormElement).get("code")).trim();
    try {
      await signIn(/[\w-]+$/.exec(text)?.[0] ?? "");
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <main class="signin" id="main">
      <h1>Sign in to Perdure</h1>
      {provider !== null && (
        <p>
          <a class="button primary" href="/api/v1/session/oidc" onClick={keepAsked}>
            Sign in with {provider}
          </a>
        </p>
      )}
      <p>{provider === null ? "Run" : "Or run"} this where you use Perdure. It opens this page, signed in:</p>
      <pre class="command">perdure dashboard</pre>
      <form onSubmit={submit}>
        <label>
          <span>
            Or paste the link that <code>perdure dashboard --no-browser</code> prints, or your token
          </span>
          <input name="code" type="password" autocomplete="off" spellcheck={false} required />
        </label>
        <button class="primary">Sign in</button>
      </form>
      <ErrorBox error={error} />
    </main>
  );
}

/** A link may be somebody else's, who would see what is done in their name. */
export function ConfirmSignIn({ code, user }: { code: string; user: string }) {
  const [error, setError] = useState<Error | null>(null);
  const confirm = async () => {
    try {
      await signIn(code);
      location.reload(); // what was read as somebody else is forgotten
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <main class="signin" id="main">
      <h1>Sign in as {user}?</h1>
      <p>The link that you have opened signs this browser in as {user}. If you did not ask for it, somebody may want you to work in their name.</p>
      <p class="buttons left">
        <button type="button" class="primary" onClick={() => void confirm()}>
          Sign in as {user}
        </button>
        <button type="button" onClick={() => (offered.value = null)}>
          No
        </button>
      </p>
      <ErrorBox error={error} />
    </main>
  );
}

export { signedIn };
