// Shortcuts: single letters (which can be switched off) and sequences such as `g j`. None while text is typed.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

const STORED = "perdure.shortcuts";
const SEQUENCE_MS = 2000;
export const shortcutsOn = signal(localStorage.getItem(STORED) !== "off");

export function setShortcuts(on: boolean): void {
  localStorage.setItem(STORED, on ? "on" : "off");
  shortcutsOn.value = on;
}

type Keys = Record<string, () => void>;
const stack: Keys[] = [];
let prefix = "";
let prefixAt = 0;

/** Bind keys while the component is shown. Those of inner and later components win. */
export function useKeys(keys: Keys): void {
  useEffect(() => {
    stack.push(keys);
    return () => void stack.splice(stack.indexOf(keys), 1);
  });
}

function isTyping(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return !!element && (element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName));
}

export function startKeyboard(): void {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    if (!shortcutsOn.value) return;
    const key = event.timeStamp - prefixAt < SEQUENCE_MS && prefix ? `${prefix} ${event.key}` : event.key;
    prefix = "";
    const bound = [...stack].reverse().find((keys) => key in keys)?.[key];
    if (bound) {
      event.preventDefault();
      bound();
    } else if (event.key === "g") {
      [prefix, prefixAt] = ["g", event.timeStamp];
    }
  });
}
