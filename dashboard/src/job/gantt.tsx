// The attempts of a job over zones and time. Marks differ by shape and text; bars are links to the rows of the table.
import { useEffect, useRef, useState } from "preact/hooks";
import { clockTime, duration, money, ordinal, place } from "../core/format";
import type { Bar, Mark } from "./attempts";
import { GAP_PX, timeScale } from "./scale";

const ROW = 36;
const TOP = 22;
const BAR = 14;
const MIN_MARK_PX = 14; // calm, and each can be pointed at
const ZOOMS: [string, number | null][] = [
  ["All", null],
  ["6 h", 6 * 3600],
  ["1 h", 3600],
  ["15 min", 900],
];
const VISIBLE_MARGIN_PX = 400;

/** Each kind of mark as a path around (0, 0). */
const SHAPES: Record<Mark["kind"], string> = {
  notice: "M-5 -5h10l-5 9z",
  preempted: "M-4 -4l8 8m0 -8l-8 8",
  lost: "M-4 -4l8 8m0 -8l-8 8",
  failed: "M-4 -4h8v8h-8z",
  durable: "M0 -3.5l3.5 3.5-3.5 3.5-3.5-3.5z",
  refused: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
};

const LEGEND: [Mark["kind"], string][] = [
  ["notice", "notice"],
  ["preempted", "lost without notice"],
  ["durable", "checkpoint durable"],
  ["refused", "refused"],
];

interface Props {
  bars: Bar[];
  selected: string | null;
  onSelect: (key: string) => void;
  now: number;
}

export function Gantt({ bars, selected, onSelect, now }: Props) {
  const [zoom, setZoom] = useState(0);
  const [room, setRoom] = useState(800);
  const [view, setView] = useState({ left: 0, width: 800 });
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const measure = () => {
      setRoom(element.clientWidth);
      setView({ left: element.scrollLeft, width: element.clientWidth });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  const span = ZOOMS[zoom]?.[1] ?? null;
  const scale = timeScale(bars, Math.max(240, room - 28), span === null ? null : (room - 28) / span);
  useEffect(() => {
    const element = scroller.current;
    if (element) element.scrollLeft = element.scrollWidth; // what happens now is of most interest
  }, [zoom]);
  const rows = [...new Set(bars.map((bar) => bar.row))];
  const height = TOP + rows.length * ROW + 4;
  const inView = bars.filter((bar) => scale.x(bar.to) > view.left - VISIBLE_MARGIN_PX && scale.x(bar.from) < view.left + view.width + VISIBLE_MARGIN_PX);
  const total = bars.length;
  return (
    <div class="gantt">
      <div class="gantt-tools">
        <ul class="legend" aria-label="Signs">
          <li>
            <svg width="26" height="12" aria-hidden="true">
              <rect class="seg setup" x="0" y="1" width="9" height="10" />
              <rect class="seg running" x="9" y="1" width="17" height="10" />
            </svg>
            start, run
          </li>
          <li>
            <svg width="18" height="12" aria-hidden="true">
              <rect class="seg running" x="0" y="1" width="18" height="10" />
              <rect class="redone" x="0" y="1" width="18" height="10" />
            </svg>
            work done again
          </li>
          {LEGEND.map(([kind, text]) => (
            <li key={kind}>
              <svg width="14" height="12" viewBox="-7 -6 14 12" aria-hidden="true">
                <path class={`mark ${kind}`} d={SHAPES[kind]} />
              </svg>
              {text}
            </li>
          ))}
        </ul>
        <div class="segmented" role="group" aria-label="Time shown">
          {ZOOMS.map(([name], index) => (
            <button key={name} type="button" aria-pressed={zoom === index} onClick={() => setZoom(index)}>
              {name}
            </button>
          ))}
        </div>
      </div>
      <div class="gantt-body">
        <div class="gantt-labels" aria-hidden="true">
          {rows.map((row) => {
            const offer = bars.find((bar) => bar.row === row)?.attempt;
            return (
              <div key={row} class="gantt-label">
                <span class="zone">{offer && place(offer)}</span>
                <span class="part">{offer && `${offer.market} ${money(offer.price_per_hour)}/h`}</span>
              </div>
            );
          })}
        </div>
        <div class="gantt-scroll" ref={scroller} tabIndex={0} role="region" aria-label="Attempts over time">
          <svg
            width={Math.max(scale.width + 26, 100)}
            height={height}
            role="group"
            aria-label={`${total} ${total === 1 ? "attempt" : "attempts"} in ${rows.length} ${rows.length === 1 ? "place" : "places"}`}
          >
            <defs>
              <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
                <rect width="5" height="5" class="hatch-back" />
                <rect width="2" height="5" class="hatch-line" />
              </pattern>
              <pattern id="gap" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
                <rect width="1" height="6" class="gap-line" />
              </pattern>
            </defs>
            <g transform="translate(12 0)">
              {rows.map((row, index) => (
                <line key={row} class="grid" x1={-12} x2={scale.width + 14} y1={TOP + index * ROW} y2={TOP + index * ROW} />
              ))}
              {scale.ticks.map(({ at, x }) => (
                <g key={at}>
                  <line class="grid" x1={x} x2={x} y1={TOP - 4} y2={height} />
                  <text class="tick" x={x + 3} y={12}>
                    {tickText(at)}
                  </text>
                </g>
              ))}
              {scale.gaps.map((gap) => (
                <rect key={gap.from} x={gap.x} y={TOP} width={GAP_PX} height={height - TOP} fill="url(#gap)">
                  <title>{`nothing for ${duration(gap.to - gap.from)}`}</title>
                </rect>
              ))}
              {inView.map((bar) => (
                <BarView
                  key={bar.key}
                  bar={bar}
                  x={scale.x}
                  y={TOP + rows.indexOf(bar.row) * ROW}
                  isSelected={bar.key === selected}
                  onSelect={onSelect}
                />
              ))}
              {bars.some((bar) => !bar.isOver) && <line class="now" x1={scale.x(now)} x2={scale.x(now)} y1={TOP - 4} y2={height} />}
            </g>
          </svg>
        </div>
      </div>
    </div>
  );
}

function BarView({ bar, x, y, isSelected, onSelect }: { bar: Bar; x: (at: number) => number; y: number; isSelected: boolean; onSelect: (key: string) => void }) {
  const [left, right] = [x(bar.from), Math.max(x(bar.to), x(bar.from) + 3)];
  const top = y + 15;
  return (
    <a
      href={`#attempt-${bar.key}`}
      class={`bar ${isSelected ? "selected" : ""}`}
      aria-label={describe(bar)}
      onClick={(event) => {
        event.preventDefault();
        onSelect(bar.key);
      }}
      onFocus={() => onSelect(bar.key)}
    >
      <title>{describe(bar)}</title>
      <rect class="hit" x={left - 4} y={y + 2} width={right - left + 8} height={ROW - 4} rx="4" />
      <text class="number" x={left} y={y + 11} aria-hidden="true">
        {bar.attempt.generation}
      </text>
      {bar.segments.map((segment) => (
        <rect key={segment.phase} class={`seg ${segment.phase}`} x={x(segment.from)} y={top} width={Math.max(1, x(segment.to) - x(segment.from))} height={BAR} />
      ))}
      {!bar.segments.length && <rect class="seg asked" x={left} y={top} width={3} height={BAR} />}
      {bar.lostFrom !== null && bar.runTo !== null && bar.runTo > bar.lostFrom && (
        <rect class="redone" x={x(bar.lostFrom)} y={top} width={Math.max(2, x(bar.runTo) - x(bar.lostFrom))} height={BAR} />
      )}
      {thinned(bar.marks, x).map((mark) => (
        <g key={`${mark.kind}${mark.at}`} transform={`translate(${x(mark.at)} ${mark.kind === "durable" ? top + BAR / 2 : y + 9})`}>
          <path class={`mark ${mark.kind}`} d={SHAPES[mark.kind]}>
            <title>{`${clockTime(new Date(mark.at * 1000).toISOString())} ${mark.text}`}</title>
          </path>
        </g>
      ))}
    </a>
  );
}

/** Of durable checkpoints, at most one for each few pixels. */
function thinned(marks: Mark[], x: (at: number) => number): Mark[] {
  let last = -Infinity;
  return marks.filter((mark) => {
    if (mark.kind !== "durable") return true;
    if (x(mark.at) - last < MIN_MARK_PX) return false;
    last = x(mark.at);
    return true;
  });
}

function describe(bar: Bar): string {
  const { attempt } = bar;
  const ran = bar.runFrom !== null && bar.runTo !== null ? `ran ${duration(bar.runTo - bar.runFrom)}` : bar.refusal ? "was refused" : "has not run";
  const end = attempt.reason ? `, ended: ${attempt.reason.toLowerCase().replaceAll("_", " ")}` : bar.isOver ? "" : `, ${attempt.state.toLowerCase().replaceAll("_", " ")}`;
  const again = bar.lostSeconds ? `, ${duration(bar.lostSeconds)} of work done again` : "";
  return `${attempt.generation}: ${capital(ordinal(attempt.generation))} attempt, ${place(attempt)} ${attempt.market}, ${ran}${end}${again}`;
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function tickText(at: number): string {
  const date = new Date(at * 1000);
  const text = clockTime(date.toISOString());
  if (text === "00:00:00") return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return text.endsWith(":00") ? text.slice(0, 5) : text;
}
