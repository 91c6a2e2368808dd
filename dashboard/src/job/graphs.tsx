// What a job's machines used and its program reported, over all attempts: small charts on one time axis.
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, count, percent, plural } from "../core/format";
import { useLive } from "../core/live";
import { Chart, type Line, type Range } from "../parts/chart";
import { ErrorBox } from "../parts/basics";
import { Table } from "../parts/things";
import type { JobDetail, MetricsOverTime, NodeMetrics } from "../types";
import type { Bar } from "./attempts";
import { Progress } from "./progress";
import { timeScale } from "./scale";

type Format = (value: number) => string;
const share: Format = (value) => percent(value);
const perSecond: Format = (value) => `${bytes(Math.round(value))}/s`;
const short: Format = (value) =>
  value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3) ? value.toExponential(2) : Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4)));

/** Column, title, text of a value, range of the axis. */
const GRAPHS: [string, string, Format, Range][] = [
  ["gpu", "GPU", share, [0, 1]],
  ["gpu_memory", "GPU memory", share, [0, 1]],
  ["gpu_power_w", "GPU power", (value) => `${Math.round(value)} W`, "zero"],
  ["gpu_temperature_c", "Hottest GPU", (value) => `${Math.round(value)} °C`, "zero"],
  ["cpu", "CPU", share, [0, 1]],
  ["memory", "Memory", share, [0, 1]],
  ["disk", "Disk", share, [0, 1]],
  ["received_per_s", "Received", perSecond, "zero"],
  ["sent_per_s", "Sent", perSecond, "zero"],
];
const MIN_CHART_PX = 300;
const GAP_PX = 24;

export function Graphs({ job, all }: { job: JobDetail; all: Bar[] }) {
  const { data, error } = useLive<MetricsOverTime>(`/jobs/${job.job_id}/metrics`, () => false, 1000, 20_000);
  const [room, setRoom] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setRoom(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const hasCheckpoints = job.timeline.some((entry) => entry.kind.startsWith("checkpoint."));
  return (
    <>
      {hasCheckpoints && <Progress job={job} all={all} />}
      <ErrorBox error={error} />
      <div class="metrics" ref={box}>
        {data && room > 0 && <Charts data={data} all={all} room={room} />}
      </div>
      {data && data.series.length > 0 && <Means data={data} />}
      {data && !data.series.length && (
        <p class="muted empty">
          No machine has reported yet: the first report comes ten seconds after its agent has started. Metrics are kept for 30 days.
        </p>
      )}
      {data && data.omitted > 0 && <p class="muted">{plural(data.omitted, "node")} of older attempts left out.</p>}
      {data && !data.series.some((one) => one.values.step) && !hasCheckpoints && (
        <p class="muted">
          A program that calls <code>perdure.checkpoint.report_progress(step, loss=loss)</code> has its step and its loss here.
        </p>
      )}
    </>
  );
}

function Charts({ data, all, room }: { data: MetricsOverTime; all: Bar[]; room: number }) {
  const [cursor, setCursor] = useState<number | null>(null);
  const columns = Math.max(1, Math.floor((room + GAP_PX) / (MIN_CHART_PX + GAP_PX)));
  const width = Math.min(room, Math.floor((room - (columns - 1) * GAP_PX) / columns));
  const reported = [...new Set(data.series.flatMap((one) => Object.keys(one.reported)))].sort();
  const times = data.series.flatMap((one) => one.at);
  const busy = [
    ...all.filter((bar) => bar.refusal === null).map((bar) => ({ from: bar.from, to: Math.max(bar.to, bar.from + 1) })),
    ...(times.length ? [{ from: times[0] as number, to: times[0] as number }] : []),
  ];
  const scale = timeScale(busy, width - 4, null);
  const charts: [string, Line[], Format, Range][] = [
    ["Step", lines(data, (one) => one.values.step), count, null],
    ...reported.map((name): [string, Line[], Format, Range] => [name, lines(data, (one) => one.reported[name]), short, null]),
    ...GRAPHS.map(([column, title, format, range]): [string, Line[], Format, Range] => [
      title,
      lines(data, (one) => one.values[column]),
      format,
      range,
    ]),
  ];
  return (
    <>
      {charts
        .filter(([, drawn]) => drawn.length)
        .map(([title, drawn, format, range]) => (
          <Chart key={title} title={title} lines={drawn} scale={scale} format={format} range={range} cursor={cursor} onCursor={setCursor} />
        ))}
    </>
  );
}

function lines(data: MetricsOverTime, column: (one: NodeMetrics) => (number | null)[] | undefined): Line[] {
  return data.series.flatMap((one) => {
    const values = column(one) ?? [];
    const points = one.at.flatMap((at, index) => (values[index] == null ? [] : [{ at, value: values[index] as number }]));
    const name = `attempt ${one.generation}, node ${one.rank}`;
    const key = `${one.task_index}.${one.generation}.${one.rank}`;
    return points.length ? [{ key, name, points, maxGapS: Math.max(200, 3 * one.resolution_s) }] : [];
  });
}

/** The same as text, for those who cannot see the charts, or want numbers. */
function Means({ data }: { data: MetricsOverTime }) {
  const withGpus = data.series.some((one) => one.values.gpu);
  const tasks = new Set(data.series.map((one) => one.task_index)).size > 1;
  const gpus = withGpus ? ["#GPU, mean", "#GPU memory, most"] : [];
  const heads = [...(tasks ? ["#Task"] : []), "#Attempt", "#Node", ...gpus, "#CPU, mean", "#Memory, most", "#Last step"];
  return (
    <details>
      <summary>As a table</summary>
      <Table label="Metrics as a table" heads={heads}>
        {data.series.map((one) => (
          <tr key={`${one.task_index}.${one.generation}.${one.rank}`}>
            {tasks && <td class="num">{one.task_index}</td>}
            <td class="num">{one.generation}</td>
            <td class="num">{one.rank}</td>
            {withGpus && <td class="num">{of(one.values.gpu, mean, share)}</td>}
            {withGpus && <td class="num">{of(one.values.gpu_memory, most, share)}</td>}
            <td class="num">{of(one.values.cpu, mean, share)}</td>
            <td class="num">{of(one.values.memory, most, share)}</td>
            <td class="num">{of(one.values.step, most, count)}</td>
          </tr>
        ))}
      </Table>
    </details>
  );
}

const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
const most = (values: number[]) => Math.max(...values);

function of(column: (number | null)[] | undefined, what: (values: number[]) => number, format: Format): string {
  const values = (column ?? []).filter((value): value is number => value !== null);
  return values.length ? format(what(values)) : "";
}
