// One stream of hints for all tabs of a browser: the tab that holds a lock reads it and passes hints on. HTTP/1.1 allows
// six connections, so a stream for each tab would block the others.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, offered, open, signedIn } from "./api";

/** Jobs that have changed; null: any may have changed, so read everything again. */
export type Hint = number[] | null;

export const isLive = signal(false);

const LOCK = "perdure.events";
const SILENCE_MS = 25_000; // the server sends something every 10 s
/** How long to wait at most, and half of it at least, before the stream is opened again: the browsers of a controller
 * that was restarted do not all come at once. */
const RETRY_MS = [250, 1000, 2000, 2000, 5000];
const POLL_MS = 15_000;
/** How long a new page waits for the stream: what it reads once that has begun need not be read again. */
const FIRST_READ_MS = 250;
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("perdure") : null;
const listeners = new Set<(hint: Hint) => void>();

type Message = { hint: Hint } | { live: boolean } | { ask: true };

function deliver(hint: Hint): void {
  for (const listener of listeners) listener(hint);
}

function setLive(live: boolean): void {
  if (live && !isLive.value) deliver(null);
  isLive.value = live;
}

function broadcast(message: Message): void {
  channel?.postMessage(message);
}

function onEvent(name: string, data: string): void {
  if (name === "hello") {
    isLive.value = true;
    deliver(null); // what has changed since the last reading, in this tab and in the others
    broadcast({ live: true });
    return;
  }
  const { ids } = JSON.parse(data) as { ids?: number[] };
  deliver(ids ?? null);
  broadcast({ hint: ids ?? null });
}

/** Read the stream until it ends. */
async function follow(): Promise<void> {
  const abort = new AbortController();
  let timer = setTimeout(() => abort.abort(), SILENCE_MS);
  try {
    const response = await open("/events", { signal: abort.signal });
    signedIn.value = true;
    const reader = (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() as string;
      for (const part of parts) {
        const match = /^event: (\w+)\ndata: (.*)$/.exec(part);
        if (match) onEvent(match[1] as string, match[2] as string);
      }
    }
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

async function lead(): Promise<never> {
  let failures = 0;
  for (;;) {
    // While the page asks whether to sign in, the answer could only be that it is not.
    if (signedIn.value !== false && !offered.value) {
      const began = Date.now();
      await follow().catch(() => undefined);
      failures = Date.now() - began > 5000 ? 0 : failures + 1;
      setLive(false);
      broadcast({ live: false });
    }
    const waitMs = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)] as number;
    await new Promise((resolve) => setTimeout(resolve, waitMs * (1 - Math.random() / 2)));
  }
}

export function startLive(): void {
  channel?.addEventListener("message", ({ data }: MessageEvent<Message>) => {
    if ("hint" in data) deliver(data.hint);
    else if ("live" in data) setLive(data.live);
    else if (isLeader) broadcast({ live: isLive.value });
  });
  broadcast({ ask: true });
  let isLeader = false;
  const begin = () => {
    isLeader = true;
    return lead();
  };
  // Without a secure context there are no locks: then each tab has a stream.
  if (navigator.locks) void navigator.locks.request(LOCK, begin);
  else void begin();
  setInterval(() => {
    if (!isLive.value && signedIn.value) deliver(null);
  }, POLL_MS);
}

export interface Loaded<T> {
  data: T | null;
  error: Error | null;
  reload: () => void;
}

/**
 * What `path` returns, read again when a hint concerns it. `concerns`: whether these jobs matter; `minMs`: the shortest
 * time between two readings, so that a busy controller is not asked four times a second. `keepsOld`: show what the path
 * before has returned until the new one has answered.
 */
export function useLive<T>(path: string | null, concerns: (ids: number[]) => boolean = () => true, minMs = 250, everyMs = 0, keepsOld = false): Loaded<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: Error | null }>({ path: null, data: null, error: null });
  const interest = useRef(concerns);
  interest.current = concerns;
  const reload = useRef<() => void>(() => undefined);
  useEffect(() => {
    if (path === null) return;
    let [stopped, running, dirty, readAt, timer, first] = [false, false, false, 0, 0, 0];
    const abort = new AbortController();
    const read = async () => {
      if (stopped) return;
      clearTimeout(first);
      if (running || document.hidden) {
        dirty = true;
        return;
      }
      const wait = readAt + minMs - Date.now();
      if (wait > 0) {
        if (!timer) timer = window.setTimeout(() => ((timer = 0), read()), wait);
        return;
      }
      [running, dirty, readAt] = [true, false, Date.now()];
      try {
        const data = await get<T>(path, abort.signal);
        if (!stopped) setState({ path, data, error: null });
      } catch (error) {
        if (!stopped) setState((old) => ({ path, data: old.path === path ? old.data : null, error: error as Error }));
      }
      running = false;
      if (dirty) void read();
    };
    const onHint = (hint: Hint) => {
      if (hint === null || interest.current(hint)) void read();
    };
    const onVisible = () => {
      if (!document.hidden && dirty) void read();
    };
    reload.current = () => ((readAt = 0), void read());
    listeners.add(onHint);
    document.addEventListener("visibilitychange", onVisible);
    const ticker = everyMs ? setInterval(() => void read(), everyMs) : undefined;
    if (isLive.value || signedIn.value) void read();
    else first = window.setTimeout(() => void read(), FIRST_READ_MS);
    return () => {
      stopped = true;
      abort.abort();
      clearTimeout(first);
      clearTimeout(timer);
      clearInterval(ticker);
      listeners.delete(onHint);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [path, minMs, everyMs]);
  const isCurrent = state.path === path || keepsOld;
  return { data: isCurrent ? state.data : null, error: isCurrent ? state.error : null, reload: () => reload.current() };
}

/** The time, for ages: one timer for the whole page. */
export const now = signal(Date.now() / 1000);
let skew = 0;
setInterval(() => (now.value = Date.now() / 1000 + skew), 1000);

/** Show ages by the controller's clock. */
export function setClock(iso: string): void {
  skew = Date.parse(iso) / 1000 - Date.now() / 1000;
}
