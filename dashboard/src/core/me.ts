// Whose token or sign-in this browser uses, and what it allows: pages hide what would be refused.
import { effect, signal } from "@preact/signals";
import type { Me } from "../types";
import { get, signedIn } from "./api";

/** Null until it is known. */
export const me = signal<Me | null>(null);

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
    if (signedIn.value !== true) me.value = null;
    else if (me.peek() === null) {
      get<Me>("/whoami").then(
        (found) => (me.value = found),
        () => undefined,
      );
    }
  });
}
