// The log of a job: all attempts in one text, followed live, searched; only visible lines are in the page.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { open } from "../core/api";
import { bytes, count, plural } from "../core/format";
import { useKeys } from "../core/keyboard";
import { address, go, withQuery } from "../core/router";
import { ErrorBox } from "../parts/basics";
import { plain, spans } from "./ansi";
import { LINE, useScroll } from "./logscroll";
import { INVALID, matcherOf, patternOf, useHits } from "./logsearch";
import { LogStore, MARK, MAX_WHOLE_BYTES } from "./logstore";

const OVERSCAN = 5;
const BLOCK_LINES = 20; // they keep their places among each other, so that nothing moves but by scrolling

interface Props {
  id: number;
  task: number | null;
  attempts: number[];
  goTo: number | null;
}

export function Log({ id, task, attempts, goTo }: Props) {
  const [isWhole, setWhole] = useState(false);
  const [store, setStore] = useState<LogStore | null>(null);
  const [, setVersion] = useState(0);
  const path = `/jobs/${id}/logs${task === null ? "" : `?task=${task}`}`;
  useEffect(() => {
    let scheduled = 0;
    const onChange = () => {
      if (!scheduled) scheduled = requestAnimationFrame(() => ((scheduled = 0), setVersion((n) => n + 1)));
    };
    const next = new LogStore(path, onChange, isWhole);
    setStore(next);
    return () => {
      next.stop();
      cancelAnimationFrame(scheduled);
    };
  }, [path, isWhole]);
  const total = store?.count ?? 0;
  const { element, top, height, spacer, pinned, setPinned, toLine, placeOf } = useScroll(total);
  const seen = useRef(0);
  const first = Math.max(0, Math.floor(top / LINE) - OVERSCAN);
  const end = Math.min(total, Math.ceil((top + height) / LINE) + OVERSCAN);
  useEffect(() => store?.want(first, end));
  useEffect(() => {
    if (pinned) seen.current = total;
  }, [total, pinned]);

  const [text, setText] = useState("");
  const [hit, setHit] = useState(0);
  const matcher = useMemo(() => matcherOf(text), [text]);
  const { hits, more } = useHits(store, text, matcher);
  const lines = hits.lines;
  const needsWhole = !!store?.first && matcher !== INVALID && patternOf(text) !== undefined;
  useEffect(() => {
    if (needsWhole && store && store.bytes < MAX_WHOLE_BYTES) setWhole(true);
  }, [needsWhole]);
  const show = (at: number) => {
    setHit(at);
    toLine(lines[at] as number);
  };
  const next = () => lines.length && show((hit + 1) % lines.length);
  const previous = async () => {
    if (hit > 0) show(hit - 1);
    else if (hits.from) await more();
    else if (lines.length) show(lines.length - 1);
  };
  // Show the newest hit of a new search; keep the place when earlier ones are added.
  const known = useRef<{ matcher: RegExp | null; first: number | undefined; last: number | undefined }>({ matcher: null, first: undefined, last: undefined });
  useEffect(() => {
    const before = known.current;
    known.current = { matcher, first: lines[0], last: lines[lines.length - 1] };
    if (!lines.length) return;
    if (before.matcher !== matcher || before.first === undefined) show(lines.length - 1);
    else if (before.first !== lines[0]) {
      const at = lines.indexOf(before.first) - 1; // the one above the first that was known
      if (at >= 0) show(at);
    }
  }, [matcher, lines[0]]);

  const marks = store?.marks ?? new Map<number, number>();
  const goToAttempt = (generation: number) => {
    const line = marks.get(generation);
    if (line !== undefined) toLine(line);
  };
  useEffect(() => {
    if (goTo !== null) goToAttempt(goTo);
  }, [goTo, goTo !== null && marks.has(goTo)]);
  const asked = Number(address.value.query.get("line") ?? 0); // as people count, from 1
  const isLoaded = total > 0;
  useEffect(() => {
    if (isLoaded && asked >= 1) toLine(asked - 1);
  }, [asked, isLoaded]);
  const sticky = stickyMark(store, first + OVERSCAN);
  const current = lines[hit] ?? (asked ? asked - 1 : undefined);

  useKeys({ f: () => setPinned(!pinned), n: next, N: () => void previous() });
  const fresh = total - seen.current;
  const digits = String(total).length;
  const status =
    matcher === INVALID
      ? "not a regular expression"
      : needsWhole && (store?.bytes ?? 0) >= MAX_WHOLE_BYTES
        ? "too long a log for a regular expression"
        : !text
          ? ""
          : lines.length
            ? `${count(hit + 1)} of ${count(lines.length)}${hits.from ? "+" : ""}`
            : hits.isSearching || hits.from
              ? "searching …"
              : "no hit";

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
            if (event.key === "Enter") event.shiftKey ? void previous() : next();
          }}
        />
        <span class="hits" role="status">
          {status}
        </span>
        <button type="button" disabled={!lines.length || hits.isSearching} onClick={() => void previous()} aria-label="Previous hit">
          ↑
        </button>
        <button type="button" disabled={!lines.length} onClick={next} aria-label="Next hit">
          ↓
        </button>
        <label class="jump">
          <span class="hidden">Go to attempt</span>
          <select
            value=""
            onChange={(event) => {
              const generation = Number(event.currentTarget.value);
              event.currentTarget.value = "";
              goToAttempt(generation);
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
        <input
          class="to-line"
          type="text"
          inputMode="numeric"
          aria-label="Go to line"
          placeholder="Line"
          onKeyDown={(event) => {
            const line = Number(event.currentTarget.value.replace(/[,. ]/g, ""));
            if (event.key !== "Enter" || !(line >= 1)) return;
            go(withQuery({ line: String(Math.min(total, Math.floor(line))) }), true);
            toLine(line - 1);
          }}
        />
        <span class="grow" />
        <button type="button" aria-pressed={pinned} onClick={() => setPinned(!pinned)}>
          Follow
        </button>
        <Download id={id} path={path} />
      </div>
      <ErrorBox error={store?.error ?? hits.error} />
      <div class="log-box">
        {sticky && (
          <div class="log-sticky" aria-hidden="true">
            {sticky}
          </div>
        )}
        <div class="log-lines" ref={element} role="log" aria-label={`Log of job ${id}`} aria-live="off" tabIndex={0}>
          <svg class="spacer" width="1" height={spacer} aria-hidden="true" />
          {blocks(first, end).map((block) => (
            <Lines key={block} store={store} first={block} end={Math.min(total, block + BLOCK_LINES)} offset={placeOf(block)} digits={digits} matcher={matcher === INVALID ? null : matcher} current={current} />
          ))}
        </div>
        {!pinned && fresh > 0 && !store?.isOver && (
          <button type="button" class="fresh primary" onClick={() => setPinned(true)}>
            ↓ {plural(fresh, "new line")}
          </button>
        )}
      </div>
      <div class="log-foot">
        <span>
          {plural(total, "line")}, {bytes(store?.bytes ?? 0)}
        </span>
        <span>{store?.isOver ? "complete" : "live"}</span>
      </div>
    </div>
  );
}

/** The first lines of the blocks that have visible lines. */
function blocks(first: number, end: number): number[] {
  const found = [];
  for (let block = Math.floor(first / BLOCK_LINES) * BLOCK_LINES; block < end; block += BLOCK_LINES) found.push(block);
  return found;
}

interface LinesProps {
  store: LogStore | null;
  first: number;
  end: number;
  offset: number;
  digits: number;
  matcher: RegExp | null;
  current: number | undefined;
}

/** Some lines, moved to where they belong by the object model, which the content security policy allows. */
function Lines(props: LinesProps) {
  const element = useRef<HTMLDivElement>(null);
  const { digits } = props;
  useEffect(() => {
    element.current?.style.setProperty("transform", `translateY(${props.offset}px)`);
  }, [props.offset]);
  useEffect(() => {
    element.current?.style.setProperty("--digits", String(Math.max(4, digits)));
  }, [digits]);
  const shown = [];
  for (let at = props.first; at < props.end; at += 1) {
    const line = props.store?.line(at);
    const kind = line === undefined ? " is-missing" : MARK.test(line) ? " is-mark" : "";
    shown.push(
      <div key={at} class={`line${kind}${at === props.current ? " current" : ""}`}>
        <span class="number" aria-hidden="true" onClick={() => go(withQuery({ line: String(at + 1) }), true)}>
          {at + 1}
        </span>
        {line === undefined ? <span class="text">…</span> : <Text line={line} matcher={props.matcher} />}
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

/** The headline of the attempt whose lines are at the top, if it is out of sight. */
function stickyMark(store: LogStore | null, top: number): string | null {
  let [begins, attempt] = [-1, 0];
  for (const [generation, line] of store?.marks ?? []) if (line <= top && line > begins) [begins, attempt] = [line, generation];
  if (begins < 0 || begins >= top - 1) return null;
  return store?.line(begins)?.replace(/^--- | ---$/g, "") ?? `attempt ${attempt}`;
}

/** Saves the whole log. Its address alone would not do: the session needs a header, too. */
function Download({ id, path }: { id: number; path: string }) {
  const [isLoading, setLoading] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const save = async () => {
    setLoading(true);
    setError(null);
    try {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await (await open(path)).blob());
      link.download = `job-${id}.log`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (problem) {
      setError(problem as Error);
    }
    setLoading(false);
  };
  return (
    <button type="button" disabled={isLoading} title={error?.message} onClick={() => void save()}>
      {isLoading ? "Downloading …" : error ? "Download failed: again" : "Download"}
    </button>
  );
}
