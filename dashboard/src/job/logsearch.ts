// Searching a log: in the browser if all of its lines are loaded, else by the controller, upward from the end.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../core/api";
import { plain } from "./ansi";
import type { LogStore } from "./logstore";

const MAX_HITS = 50_000;
const PAGE_HITS = 1_000;
const TYPING_MS = 200;

export const INVALID = /(?!)/;

export interface Hits {
  /** Numbers of lines, ascending. */
  lines: number[];
  /** Lines before this one were not searched; 0 if all were. */
  from: number;
  isSearching: boolean;
  error: Error | null;
}

export function matcherOf(text: string): RegExp | null {
  if (!text) return null;
  const pattern = patternOf(text);
  try {
    return pattern ? new RegExp(pattern) : new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  } catch {
    return INVALID;
  }
}

export function patternOf(text: string): string | undefined {
  return /^\/(.+)\/$/.exec(text)?.[1];
}

const NONE: Hits = { lines: [], from: 0, isSearching: false, error: null };

/** The lines that match. `more` searches further up; it returns how many hits that has added. */
export function useHits(store: LogStore | null, text: string, matcher: RegExp | null): { hits: Hits; more: () => Promise<number> } {
  const [, redraw] = useState(0);
  const hits = useRef<Hits>(NONE);
  const upTo = useRef(0); // lines from here on were not searched
  const about = useRef<{ store: LogStore | null; text: string }>({ store: null, text: "" });
  const update = (changes: Partial<Hits>) => {
    hits.current = { ...hits.current, ...changes };
    redraw((n) => n + 1);
  };
  const searchUp = async (signal?: AbortSignal): Promise<number> => {
    if (!store || !hits.current.from) return 0;
    const wanted = about.current;
    update({ isSearching: true, error: null });
    try {
      let added = 0;
      while (!added && hits.current.from) {
        const query = `text=${encodeURIComponent(text)}&before=${hits.current.from}&limit=${PAGE_HITS}`;
        const page = await get<{ lines: number[]; continue_at: number | null }>(store.url("/search", query), signal);
        if (about.current !== wanted) return 0;
        added = page.lines.length;
        update({ lines: [...page.lines.reverse(), ...hits.current.lines], from: page.continue_at ?? 0 });
      }
      return added;
    } catch (error) {
      if (about.current === wanted && (error as Error).name !== "AbortError") update({ error: error as Error });
      return 0;
    } finally {
      if (about.current === wanted) update({ isSearching: false });
    }
  };
  const total = store?.count ?? 0;
  if (about.current.store !== store || about.current.text !== text) {
    about.current = { store, text };
    hits.current = { ...NONE, from: store && matcher && matcher !== INVALID && !patternOf(text) ? store.first : 0 };
    upTo.current = store?.first ?? 0;
  }
  // What is loaded is searched here, and what arrives.
  if (store && matcher && matcher !== INVALID && upTo.current < total) {
    const added: number[] = [];
    for (let at = Math.max(upTo.current, store.first); at < total && hits.current.lines.length + added.length < MAX_HITS; at += 1) {
      if (matcher.test(plain(store.line(at) as string))) added.push(at);
    }
    upTo.current = total;
    if (added.length) hits.current = { ...hits.current, lines: [...hits.current.lines, ...added] };
  }
  useEffect(() => {
    if (!hits.current.from || hits.current.lines.length) return;
    const abort = new AbortController();
    const timer = setTimeout(() => void searchUp(abort.signal), TYPING_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [store, text]);
  return { hits: hits.current, more: searchUp };
}
