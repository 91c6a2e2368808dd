// Whose token or sign-in this browser uses, and what it allows: pages hide what would be refused.
import { effect, signal } from "@preact/signals";
import type { Me } from "../types";
import { get, signedIn } from "./api";

const STORED = "perdure.me";

/** Null until it is known. What was known last is shown at once, so that nothing moves when the answer comes. */
export const me = signal<Me | null>(JSON.parse(localStorage.getItem(STORED) ?? "null") as Me | null);

export function may(what: string): boolean {
  return me.value?.permissions.includes(what) ?? false;
}

/** Whether the caller may change what is this user's. */
export function mayChange(user: string): boolean {
  return may("operate") || (may("run") && (!me.value?.has_users || me.value.user === user));
}

/** Ask again whenever somebody signs in. */
export function startMe(): void {
  effect(() => {
    if (signedIn.value === false) remember(null);
    else if (signedIn.value) get<Me>("/whoami").then(remember, () => undefined);
  });
}

function remember(known: Me | null): void {
  if (JSON.stringify(known) === JSON.stringify(me.peek())) return;
  me.value = known;
  if (known) localStorage.setItem(STORED, JSON.stringify(known));
  else localStorage.removeItem(STORED);
}
