// Signs a command line in: `perdure login` opens this page with a challenge, and gets a code back.
import { useState } from "preact/hooks";
import { send } from "../core/api";
import { me } from "../core/me";
import { go } from "../core/router";
import { CopyButton, Empty, ErrorBox } from "../parts/basics";

const STORED = "perdure.login";
const REQUEST = /^#([0-9a-f]{64})\/(\d{1,5})\/([\w-]{10,40})\/([A-Za-z0-9.-]{1,40})$/;

/** Keep the request of the address over a sign-in, which leads to other addresses. */
export function keepLoginRequest(): void {
  if (location.pathname !== "/login" || !REQUEST.test(location.hash)) return;
  sessionStorage.setItem(STORED, location.hash);
  history.replaceState(null, "", location.pathname);
}

/** Whether a command line waits for this browser to be signed in. */
export function hasLoginRequest(): boolean {
  return sessionStorage.getItem(STORED) !== null;
}

export function LoginPage() {
  const [request] = useState(() => REQUEST.exec(sessionStorage.getItem(STORED) ?? ""));
  const [code, setCode] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  if (!request) {
    return (
      <Empty title="No command line waits for this page">
        Run <code>perdure login</code> where you want to use Perdure.
      </Empty>
    );
  }
  const [, challenge, port, path, host] = request;
  const user = me.value?.user ?? "you";
  const allow = async () => {
    try {
      const made = await send<{ code: string }>("POST", "/session/command-line", { challenge });
      sessionStorage.removeItem(STORED);
      setCode(made.code);
      location.assign(`http://127.0.0.1:${port}/${path}?code=${made.code}`);
    } catch (failure) {
      setError(failure as Error);
    }
  };
  const refuse = () => {
    sessionStorage.removeItem(STORED);
    go("/jobs");
  };
  return (
    <>
      <div class="head">
        <h1>Sign the command line in?</h1>
      </div>
      {code === null ? (
        <>
          <p>
            <code>perdure login</code> on <strong>{host}</strong> asks to work as <strong>{user}</strong> for 12 hours. Allow it only if you have just run that command yourself.
          </p>
          <p class="buttons left">
            <button type="button" class="primary" onClick={() => void allow()}>
              Allow
            </button>
            <button type="button" onClick={refuse}>
              No
            </button>
          </p>
        </>
      ) : (
        <>
          <p>If the command line has not continued, paste this code there. Give it to nobody.</p>
          <pre class="code">{code}</pre>
          <CopyButton text={code} />
        </>
      )}
      <ErrorBox error={error} />
    </>
  );
}
