// A small chart of values over time: lines on a time axis that several charts share, with a common cursor.
import type { Scale } from "../job/scale";

export interface Point {
  at: number; // epoch seconds
  value: number;
}

/** One line: points in the order of time. It is broken where `isGap` says so. */
export interface Line {
  key: string;
  name: string; // for the value at the cursor, where there are several lines
  points: Point[];
  maxGapS: number;
}

export type Range = [number, number] | "zero" | null;

interface Props {
  title: string;
  lines: Line[];
  scale: Scale;
  /** The text of a value; short. */
  format: (value: number) => string;
  /** Of the axis; "zero": from zero to the highest value; null: of the values. */
  range: Range;
  cursor: number | null; // pixels
  onCursor: (x: number | null) => void;
}

const [HEIGHT, TOP, BOTTOM] = [120, 6, 20];

export function Chart({ title, lines, scale, format, range, cursor, onCursor }: Props) {
  const values = lines.flatMap((line) => line.points.map((point) => point.value));
  const [low, high] = Array.isArray(range) ? range : rangeOf(range === "zero" ? [0, ...values] : values);
  const y = (value: number) => TOP + (1 - Math.max(0, Math.min(1, (value - low) / (high - low || 1)))) * (HEIGHT - TOP - BOTTOM);
  const newest = lines[lines.length - 1]?.points.slice(-1)[0];
  const near = cursor === null ? [] : nearest(lines, scale, cursor);
  const shown = near.length ? near.map((point) => format(point.value)) : newest ? [format(newest.value)] : [];
  const width = Math.max(60, scale.width);
  const last = scale.ticks[scale.ticks.length - 1];
  return (
    <figure class="metric">
      <figcaption>
        {title} <output class="num">{[...new Set(shown)].slice(0, 4).join(" · ")}</output>
      </figcaption>
      <svg
        width={width}
        height={HEIGHT}
        role="img"
        aria-label={`${title} over time, from ${format(Math.min(...values))} to ${format(Math.max(...values))}${newest ? `, last ${format(newest.value)}` : ""}`}
        onPointerMove={(event) => onCursor(event.offsetX)}
        onPointerLeave={() => onCursor(null)}
      >
        {[low, (low + high) / 2, high].map((value) => (
          <line key={value} class="grid" x1={0} x2={width} y1={y(value)} y2={y(value)} />
        ))}
        {scale.gaps.map((gap) => (
          <rect key={gap.from} class="pause" x={gap.x} y={TOP} width={24} height={HEIGHT - TOP - BOTTOM} />
        ))}
        {lines.map((line) => (
          <path key={line.key} class="line" d={path(line, scale.x, y)} />
        ))}
        {near.map((point) => (
          <circle key={`${point.at} ${point.value}`} class="dot" cx={scale.x(point.at)} cy={y(point.value)} r="3" />
        ))}
        {cursor !== null && <line class="cursor" x1={cursor} x2={cursor} y1={TOP} y2={HEIGHT - BOTTOM} />}
        <text class="tick" x={2} y={y(high) + 11}>
          {format(high)}
        </text>
        <text class="tick" x={2} y={y(low) - 3}>
          {format(low)}
        </text>
        {[scale.ticks[0], last === scale.ticks[0] ? undefined : last].map(
          (tick) =>
            tick && (
              <text key={tick.at} class="tick" x={Math.min(tick.x, width - 34)} y={HEIGHT - 5}>
                {new Date(tick.at * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false })}
              </text>
            ),
        )}
      </svg>
    </figure>
  );
}

/** From zero, unless the values are far from it. */
function rangeOf(values: number[]): [number, number] {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) return low > 0 ? [0, high] : low < 0 ? [low, 0] : [0, 1];
  return [low >= 0 && low < high / 2 ? 0 : low, high];
}

function path(line: Line, x: (at: number) => number, y: (value: number) => number): string {
  let before = -Infinity;
  const only = line.points.length === 1; // a dot: a line of no length with round ends
  return line.points
    .map(({ at, value }) => {
      const moves = at - before > line.maxGapS;
      before = at;
      const to = `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      return `${moves ? "M" : "L"}${to}${only ? "h0" : ""}`;
    })
    .join("");
}

/** The point of each line that is next to the cursor. */
function nearest(lines: Line[], scale: Scale, cursor: number): Point[] {
  const reach = 12;
  return lines.flatMap((line) => {
    let best: Point | null = null;
    let distance = reach;
    for (const point of line.points) {
      const away = Math.abs(scale.x(point.at) - cursor);
      if (away < distance) [best, distance] = [point, away];
    }
    return best ? [best] : [];
  });
}
