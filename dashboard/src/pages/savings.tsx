// What was spent and saved, and what preemptions cost.
import { useEffect } from "preact/hooks";
import { duration, money, percent, savedShare } from "../core/format";
import { useLive } from "../core/live";
import { address, withQuery } from "../core/router";
import { Empty, ErrorBox, Meter } from "../parts/basics";
import type { Amounts, Savings } from "../types";

/** While jobs change: how often the sums are read, and how soon again if the controller has not added up all of it. */
const CHANGING_MS = 3000;
const INCOMPLETE_MS = 500;

const PERIODS: [string, string][] = [
  ["1", "24 hours"],
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
];

export function SavingsPage() {
  const days = address.value.query.get("days") ?? "7";
  const { data, error, reload } = useLive<Savings>(`/savings?days=${encodeURIComponent(days)}`, () => true, CHANGING_MS, 60_000);
  useEffect(() => {
    if (!data || (data.is_complete && data.is_current)) return;
    const timer = setTimeout(reload, data.is_complete ? CHANGING_MS : INCOMPLETE_MS);
    return () => clearTimeout(timer);
  }, [data]);
  return (
    <>
      <div class="head">
        <h1>Savings</h1>
        <nav class="segmented" aria-label="Period">
          {PERIODS.map(([value, name]) => (
            <a key={value} href={withQuery({ days: value === "7" ? "" : value })} aria-current={days === value ? "true" : undefined}>
              {name}
            </a>
          ))}
        </nav>
      </div>
      <ErrorBox error={error} />
      {data && <Content data={data} />}
    </>
  );
}

function Content({ data }: { data: Savings }) {
  const { total, unfinished } = data;
  const saved = total.on_demand_usd - total.cost_usd;
  if (!total.cost_usd && !data.by_job.length) return <Empty title="Nothing was bought in this time" />;
  return (
    <>
      <dl class="figures">
        <div>
          <dt>Spent</dt>
          <dd>{money(total.cost_usd)}</dd>
          <dd class="part">{unfinished.cost_usd > 0 ? `${money(unfinished.cost_usd)} of it by jobs that still run` : "by jobs that have ended"}</dd>
        </div>
        <div>
          <dt>Saved</dt>
          <dd class="good">{money(saved)}</dd>
          <dd class="part">{percent(savedShare(total.cost_usd, total.on_demand_usd))} of the on-demand price</dd>
        </div>
        <div>
          <dt>Lost to preemptions</dt>
          <dd>{money(total.lost_usd)}</dd>
          <dd class="part">{total.lost_s ? `${duration(total.lost_s)} of work done again` : "no work was done again"}</dd>
        </div>
      </dl>
      <Days days={data.by_day} />
      <div class="columns">
        <AmountTable title="By user" rows={data.by_user.map((row) => ({ ...row, label: row.name || "unknown" }))} />
        <AmountTable title="By cloud" rows={data.by_cloud.map((row) => ({ ...row, label: row.name || "unknown" }))} />
      </div>
      <AmountTable title="Most expensive jobs" rows={data.by_job.map((row) => ({ ...row, label: `${row.name} (${row.job_id})`, href: `/jobs/${row.job_id}` }))} />
      <p class="muted" role="status">
        {data.is_complete ? `From ${data.since.slice(0, 10)} on.` : `Adding up: so far from ${data.since.slice(0, 10)} on.`}
      </p>
    </>
  );
}

function AmountTable({ title, rows }: { title: string; rows: (Amounts & { label: string; href?: string })[] }) {
  const top = Math.max(...rows.map((row) => row.cost_usd), 1e-9);
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label={`${title}: table`}>
        <table class="plain">
          <thead>
            <tr>
              <th>Name</th>
              <th class="num">Spent</th>
              <th>
                <span class="hidden">Share</span>
              </th>
              <th class="num">Saved</th>
              <th class="num">Lost</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.label}>
                <td>{row.href ? <a href={row.href}>{row.label}</a> : row.label}</td>
                <td class="num">{money(row.cost_usd)}</td>
                <td class="meter-cell">
                  <Meter share={row.cost_usd / top} label={`${percent(row.cost_usd / top)} of the largest`} />
                </td>
                <td class="num">
                  {row.on_demand_usd > row.cost_usd && (
                    <>
                      {money(row.on_demand_usd - row.cost_usd)} <span class="part">{percent(savedShare(row.cost_usd, row.on_demand_usd))}</span>
                    </>
                  )}
                </td>
                <td class="num">{row.lost_usd ? money(row.lost_usd) : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const HEIGHT = 140;
/** About as many units as the chart has pixels, so that its labels are as large as other text. */
const chartWidth = () => (innerWidth < 760 ? 340 : 900);

/** Spent and saved by day, one on the other: together what on-demand machines would have cost. */
function Days({ days }: { days: Savings["by_day"] }) {
  if (!days.length) return null; // with one day, too: others follow while they are added up, and nothing should move
  const top = Math.max(...days.map((day) => day.on_demand_usd), 1e-9);
  const chart = chartWidth();
  const each = chart / days.length;
  const scale = (usd: number) => (usd / top) * (HEIGHT - 24);
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${chart} ${HEIGHT}`} role="img" aria-label={`Spent and saved on ${days.length} days; the table below has the sums`}>
        {days.map((day, index) => {
          const [cost, saved] = [scale(day.cost_usd), scale(Math.max(0, day.on_demand_usd - day.cost_usd))];
          const x = index * each + 2;
          const width = Math.max(1, Math.min(48, each - 4));
          return (
            <g key={day.day}>
              <title>{`${day.day}: spent ${money(day.cost_usd)}, saved ${money(day.on_demand_usd - day.cost_usd)}`}</title>
              <rect class="spent" x={x} y={HEIGHT - 18 - cost} width={width} height={cost} />
              <rect class="kept" x={x} y={HEIGHT - 18 - cost - saved} width={width} height={saved} />
              {each > 50 || index % Math.ceil(50 / each) === 0 ? (
                <text class="tick" x={x} y={HEIGHT - 4}>
                  {day.day.slice(5)}
                </text>
              ) : null}
            </g>
          );
        })}
      </svg>
      <figcaption>
        <span class="key spent">spent</span> <span class="key kept">saved</span> · by the day (UTC) in which jobs ended
      </figcaption>
    </figure>
  );
}
