// Steps over time, from the checkpoints that the job reports: committed and durable. Losses are where the line falls back.
import { clockTime, count, duration, seconds } from "../core/format";
import type { JobDetail } from "../types";
import type { Bar } from "./attempts";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [900, 260, 64, 24];

interface Point {
  at: number;
  step: number;
}

export function Progress({ job, all }: { job: JobDetail; all: Bar[] }) {
  const points = (kind: string): Point[] =>
    job.timeline
      .filter((entry) => entry.kind === kind && Number.isFinite(Number(entry.data.step)))
      .map((entry) => ({ at: seconds(entry.at), step: Number(entry.data.step) }));
  const committed = points("checkpoint.committed");
  const durable = points("checkpoint.durable");
  const everything = [...committed, ...durable];
  if (!everything.length)
    return (
      <p class="muted">
        This job has reported no checkpoint. A program that uses <code>perdure.checkpoint</code> reports its steps, and they are shown here.
      </p>
    );
  const from = Math.min(...all.map((bar) => bar.from));
  const to = Math.max(...all.map((bar) => bar.to), from + 1);
  const top = Math.max(...everything.map((point) => point.step), 1);
  const x = (at: number) => LEFT + ((at - from) / (to - from)) * (WIDTH - LEFT - 8);
  const y = (step: number) => HEIGHT - BOTTOM - (step / top) * (HEIGHT - BOTTOM - 10);
  const path = (of: Point[]) => of.map((point, index) => `${index ? "H" : "M"}${x(point.at).toFixed(1)}${index ? "V" : " "}${y(point.step).toFixed(1)}`).join("");
  const last = durable[durable.length - 1];
  const speed = rate(durable);
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`Steps over time: ${count(top)} reached, ${last ? count(last.step) : "none"} durable`}>
        {[0, 0.25, 0.5, 0.75, 1].map((share) => (
          <g key={share}>
            <line class="grid" x1={LEFT} x2={WIDTH - 8} y1={y(top * share)} y2={y(top * share)} />
            <text class="tick" x={LEFT - 8} y={y(top * share) + 4} text-anchor="end">
              {count(Math.round(top * share))}
            </text>
          </g>
        ))}
        {all
          .filter((bar) => bar.runFrom !== null && bar.runTo !== null)
          .map((bar) => (
            <rect key={bar.key} class="ran" x={x(bar.runFrom as number)} y={HEIGHT - BOTTOM} width={Math.max(1, x(bar.runTo as number) - x(bar.runFrom as number))} height="4" />
          ))}
        <path class="line committed" d={path(committed)} />
        <path class="line durable" d={path(durable)} />
        <text class="tick" x={LEFT} y={HEIGHT - 4}>
          {clockTime(new Date(from * 1000).toISOString())}
        </text>
        <text class="tick" x={WIDTH - 8} y={HEIGHT - 4} text-anchor="end">
          {clockTime(new Date(to * 1000).toISOString())}
        </text>
      </svg>
      <figcaption>
        <span class="key committed">saved</span> <span class="key durable">durable in the bucket</span>
        {last && ` · step ${count(last.step)} durable at ${clockTime(new Date(last.at * 1000).toISOString())}`}
        {speed && ` · ${speed}`}
      </figcaption>
    </figure>
  );
}

/** Steps per minute over the last checkpoints. */
function rate(durable: Point[]): string {
  const recent = durable.slice(-5);
  const [first, last] = [recent[0], recent[recent.length - 1]];
  if (!first || !last || last.at <= first.at || last.step <= first.step) return "";
  const each = (last.at - first.at) / (last.step - first.step);
  return each >= 60 ? `${duration(each)} a step` : `${(60 / each).toFixed(60 / each < 10 ? 1 : 0)} steps a minute`;
}
