// Calls of the controller's API. The cookie is valid only together with a value that this origin keeps.
import { signal } from "@preact/signals";

const STORED_VALUE = "perdure.csrf";
const ASKED = "perdure.asked";
const ASKED_MS = 600_000; // as long as the controller keeps the state of a sign-in
const API = "/api/v1";

/** Whether this browser is signed in, as far as known; null before the first answer. */
export const signedIn = signal<boolean | null>(null);

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly fix: string,
    readonly where: string | null,
  ) {
    super(message);
  }
}

function headers(): Record<string, string> {
  return { "Perdure-CSRF": localStorage.getItem(STORED_VALUE) ?? "" };
}

async function failure(response: Response): Promise<ApiError> {
  if (response.status === 401) signedIn.value = false;
  try {
    const { error } = (await response.json()) as { error: { message: string; fix: string; where: string | null } };
    return new ApiError(error.message, response.status, error.fix, error.where);
  } catch {
    return new ApiError(`the controller answered ${response.status}`, response.status, "", null);
  }
}

export async function open(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(API + path, { ...init, cache: "no-store", headers: { ...headers(), ...(init.headers as Record<string, string>) } });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new ApiError("the controller does not answer", 0, "this page continues once it does", null);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const value = (await (await open(path, { signal })).json()) as T;
  signedIn.value = true;
  return value;
}

/** The key of a request that may be repeated: the same one for the same thing. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function send<T>(method: "POST" | "PUT" | "PATCH" | "DELETE", path: string, body: unknown = {}): Promise<T> {
  const init = { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await (await open(path, init)).json()) as T;
}

/** Trade a one-time code for a cookie. A token of a named user is traded for a code first; it is not kept. */
export async function signIn(codeOrToken: string): Promise<void> {
  let code = codeOrToken;
  if (code.startsWith("pdu_")) {
    const response = await open("/session/codes", { method: "POST", headers: { Authorization: `Bearer ${code}` } });
    ({ code } = (await response.json()) as { code: string });
  }
  const { csrf } = await send<{ csrf: string }>("POST", "/session", { code });
  localStorage.setItem(STORED_VALUE, csrf);
  signedIn.value = true; // last: pages call the API from now on
}

export async function signOut(): Promise<void> {
  await send("DELETE", "/session");
  localStorage.removeItem(STORED_VALUE);
  signedIn.value = false;
}

/** How a provider's sign-in has failed. The log of the controller says why. */
const PROBLEMS: Record<string, string> = {
  "#oidc-failed": "The sign-in has failed: the provider refused it, or did not answer. Try again, or ask an administrator.",
  "#oidc-expired": "The sign-in took too long, or was begun in another browser. Try again.",
  "#oidc-refused": "You are known to the provider, but have no access to this controller. Ask an administrator for it.",
};

/** What the provider is called that signs users in; null if there is none. */
export async function signInProvider(): Promise<string | null> {
  const { name } = (await (await open("/session/oidc/name")).json()) as { name: string | null };
  return name;
}

/** This tab goes to the provider, and comes back with a code that the user need not be asked about. */
export function keepAsked(): void {
  sessionStorage.setItem(ASKED, String(Date.now()));
}

function takeAsked(): boolean {
  const at = Number(sessionStorage.getItem(ASKED));
  sessionStorage.removeItem(ASKED);
  return Date.now() < at + ASKED_MS;
}

/** A code from a link, and whose it is: the user is asked first, since it may be somebody else's. */
export const offered = signal<{ code: string; user: string } | null>(null);

/** Sign in with the code of the address's fragment, if it has one, and remove it from the address and the history. */
export async function signInFromAddress(): Promise<string | null> {
  const problem = PROBLEMS[location.hash];
  if (problem) {
    takeAsked();
    history.replaceState(null, "", location.pathname + location.search);
    return problem;
  }
  const match = /^#login=([\w-]+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    const code = match[1] as string;
    const body = { code, has_asked: takeAsked() };
    const { user, is_certain } = await send<{ user: string; is_certain: boolean }>("POST", "/session/codes/owner", body);
    if (is_certain) await signIn(code);
    else offered.value = { code, user };
    return null;
  } catch (error) {
    signedIn.value = false;
    return (error as Error).message;
  }
}

/** Keep the session alive while the page is open. */
export function keepSignedIn(): void {
  setInterval(() => {
    if (signedIn.value) get("/session").catch(() => undefined);
  }, 3_600_000);
}
