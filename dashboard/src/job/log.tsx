// The log of a job: all attempts in one text, followed live, searched in the browser; only visible lines are in the page.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bytes, count, plural } from "../core/format";
import { useKeys } from "../core/keyboard";
import { ErrorBox } from "../parts/basics";
import { plain, spans } from "./ansi";
import { LogStore } from "./logstore";

const LINE = 20;
const OVERSCAN = 10;
const MAX_HEIGHT = 12_000_000; // browsers limit the height of an element; beyond, the scroll position is proportional
const MAX_HITS = 50_000;
const MARK = /^--- attempt (\d+)(?: of task \S+)? (on|refused|ended)/;

interface Props {
  id: number;
  task: number | null;
  attempts: number[];
  goTo: number | null;
}

export function Log({ id, task, attempts, goTo }: Props) {
  const [fromStart, setFromStart] = useState(false);
  const [, setVersion] = useState(0);
  const path = `/jobs/${id}/logs${task === null ? "" : `?task=${task}`}`;
  const store = useRef<LogStore | null>(null);
  useEffect(() => {
    let scheduled = 0;
    const onChange = () => {
      if (!scheduled) scheduled = requestAnimationFrame(() => ((scheduled = 0), setVersion((n) => n + 1)));
    };
    store.current = new LogStore(path, onChange, fromStart);
    onChange();
    return () => {
      store.current?.stop();
      cancelAnimationFrame(scheduled);
    };
  }, [path, fromStart]);
  const state = store.current?.state;
  const lines = state?.lines ?? [];
  const total = state?.count ?? 0;

  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const [pinned, setPinned] = useState(true);
  const seen = useRef(0);
  const full = total * LINE;
  const stretch = full > MAX_HEIGHT ? full / MAX_HEIGHT : 1; // pixels of text for a pixel of the scroll bar
  const first = Math.max(0, Math.floor((top * stretch) / LINE) - OVERSCAN);
  const end = Math.min(total, first + Math.ceil(height / LINE) + 2 * OVERSCAN);
  const scrollTo = (line: number) => {
    const element = scroller.current;
    if (element) element.scrollTop = Math.max(0, (line * LINE - height / 3) / stretch);
  };

  useEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const element = scroller.current;
    if (pinned && element) {
      element.scrollTop = element.scrollHeight;
      seen.current = total;
    }
  }, [total, pinned, height]);

  const [text, setText] = useState("");
  const [hit, setHit] = useState(0);
  const matcher = useMemo(() => matcherOf(text), [text]);
  const searched = useRef<{ matcher: RegExp | null; upTo: number; hits: number[] }>({ matcher: null, upTo: 0, hits: [] });
  const hits = useMemo(() => {
    const known = searched.current;
    if (known.matcher !== matcher || known.upTo > total) searched.current = { matcher, upTo: 0, hits: [] };
    const current = searched.current;
    if (matcher && matcher !== INVALID) {
      for (let at = current.upTo; at < total && current.hits.length < MAX_HITS; at += 1) {
        if (matcher.test(plain(lines[at] as string))) current.hits.push(at);
      }
    }
    current.upTo = total;
    return current.hits;
  }, [matcher, total]);
  const jump = (index: number) => {
    if (!hits.length) return;
    const at = (index + hits.length) % hits.length;
    setHit(at);
    setPinned(false);
    scrollTo(hits[at] as number);
  };
  useEffect(() => {
    if (hits.length && matcher) jump(hits.length - 1);
  }, [matcher]);

  const marks = useMemo(() => attemptLines(lines, total), [total, lines]);
  useEffect(() => {
    const line = goTo === null ? undefined : marks.get(goTo);
    if (line !== undefined) {
      setPinned(false);
      scrollTo(line);
    }
  }, [goTo, goTo !== null && marks.has(goTo)]);
  const sticky = stickyMark(lines, first + OVERSCAN, marks);

  useKeys({
    f: () => setPinned(!pinned),
    n: () => jump(hit + 1),
    N: () => jump(hit - 1),
  });
  const fresh = total - seen.current;

  return (
    <div class="log">
      <div class="log-tools">
        <input
          type="search"
          data-search
          aria-label="Search the log"
          placeholder="Search, or /regular expression/"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") jump(hit + (event.shiftKey ? -1 : 1));
          }}
        />
        <span class="hits" role="status">
          {matcher === INVALID ? "not a regular expression" : text ? (hits.length ? `${count(hit + 1)} of ${count(hits.length)}${hits.length >= MAX_HITS ? "+" : ""}` : "no hit") : ""}
        </span>
        <button type="button" disabled={!hits.length} onClick={() => jump(hit - 1)} aria-label="Previous hit">
          ↑
        </button>
        <button type="button" disabled={!hits.length} onClick={() => jump(hit + 1)} aria-label="Next hit">
          ↓
        </button>
        <label class="jump">
          <span class="hidden">Go to attempt</span>
          <select
            value=""
            onChange={(event) => {
              const line = marks.get(Number(event.currentTarget.value));
              event.currentTarget.value = "";
              if (line !== undefined) {
                setPinned(false);
                scrollTo(line);
              }
            }}
          >
            <option value="">Go to attempt …</option>
            {attempts.map((generation) => (
              <option key={generation} value={generation} disabled={!marks.has(generation)}>
                attempt {generation}
              </option>
            ))}
          </select>
        </label>
        <span class="grow" />
        <button type="button" aria-pressed={pinned} onClick={() => setPinned(!pinned)}>
          Follow
        </button>
        <button type="button" onClick={() => download(id, lines.slice(0, total))}>
          Download
        </button>
      </div>
      <ErrorBox error={state?.error ?? null} />
      {!!state?.startsAt && (
        <div class="log-note">
          The first {bytes(state.startsAt)} are not loaded, and not searched.{" "}
          <button type="button" onClick={() => setFromStart(true)}>
            Load everything
          </button>
        </div>
      )}
      <div class="log-box">
        {sticky && (
          <div class="log-sticky" aria-hidden="true">
            {sticky}
          </div>
        )}
        <div
          class="log-lines"
          ref={scroller}
          role="log"
          aria-label={`Log of job ${id}`}
          aria-live="off"
          tabIndex={0}
          onScroll={(event) => {
            const element = event.currentTarget;
            setTop(element.scrollTop);
            const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < LINE;
            if (atEnd !== pinned) setPinned(atEnd);
          }}
        >
          <svg class="spacer" width="1" height={Math.max(1, Math.min(full, MAX_HEIGHT))} aria-hidden="true" />
          <Window lines={lines} first={first} end={end} offset={stretch === 1 ? first * LINE : Math.max(0, top - OVERSCAN * LINE)} matcher={matcher === INVALID ? null : matcher} current={hits[hit]} />
        </div>
        {!pinned && fresh > 0 && !state?.isOver && (
          <button type="button" class="fresh primary" onClick={() => setPinned(true)}>
            ↓ {plural(fresh, "new line")}
          </button>
        )}
      </div>
      <div class="log-foot">
        <span>
          {plural(total, "line")}, {bytes(state?.bytes ?? 0)}
        </span>
        <span>{state?.isFull ? "the rest is too large for a browser: use perdure jobs logs" : state?.isOver ? "complete" : "live"}</span>
      </div>
    </div>
  );
}

/** The visible lines, moved to where they belong by the object model, which the content security policy allows. */
function Window(props: { lines: string[]; first: number; end: number; offset: number; matcher: RegExp | null; current: number | undefined }) {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (element.current) element.current.style.transform = `translateY(${props.offset}px)`;
  }, [props.offset]);
  const shown = [];
  for (let at = props.first; at < props.end; at += 1) {
    const line = props.lines[at] as string;
    const kind = MARK.test(line) ? " is-mark" : "";
    shown.push(
      <div key={at} class={`line${kind}${at === props.current ? " current" : ""}`}>
        <span class="number" aria-hidden="true">
          {at + 1}
        </span>
        <Text line={line} matcher={props.matcher} />
      </div>,
    );
  }
  return (
    <div class="window" ref={element}>
      {shown}
    </div>
  );
}

function Text({ line, matcher }: { line: string; matcher: RegExp | null }) {
  if (matcher?.test(plain(line))) {
    const text = plain(line);
    const parts = [];
    let at = 0;
    for (const match of text.matchAll(new RegExp(matcher.source, `${matcher.flags}g`))) {
      if (!match[0]) break;
      parts.push(spans(text.slice(at, match.index))[0]?.text, <mark>{match[0]}</mark>);
      at = match.index + match[0].length;
    }
    return (
      <span class="text">
        {parts}
        {spans(text.slice(at))[0]?.text}
      </span>
    );
  }
  return (
    <span class="text">
      {spans(line).map((span, index) => (span.classes ? <span key={index} class={span.classes}>{span.text}</span> : span.text))}
    </span>
  );
}

const INVALID = /(?!)/;

function matcherOf(text: string): RegExp | null {
  if (!text) return null;
  const pattern = /^\/(.+)\/$/.exec(text)?.[1];
  try {
    return pattern ? new RegExp(pattern) : new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  } catch {
    return INVALID;
  }
}

const lineCache = new WeakMap<string[], { upTo: number; marks: Map<number, number> }>();

/** The line at which each attempt begins. */
function attemptLines(lines: string[], total: number): Map<number, number> {
  const cache = lineCache.get(lines) ?? { upTo: 0, marks: new Map<number, number>() };
  for (; cache.upTo < total; cache.upTo += 1) {
    const match = MARK.exec(lines[cache.upTo] as string);
    if (match?.[2] === "on") cache.marks.set(Number(match[1]), cache.upTo);
  }
  lineCache.set(lines, cache);
  return cache.marks;
}

/** The headline of the attempt whose lines are at the top, if it is out of sight. */
function stickyMark(lines: string[], top: number, marks: Map<number, number>): string | null {
  let found = -1;
  for (const at of marks.values()) if (at <= top && at > found) found = at;
  return found >= 0 && found < top - 1 ? (lines[found] as string).replace(/^--- | ---$/g, "") : null;
}

function download(id: number, lines: string[]): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n"), "\n"], { type: "text/plain" }));
  link.download = `job-${id}.log`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
