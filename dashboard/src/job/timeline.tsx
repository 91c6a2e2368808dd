// The events of a job by pages, newest first, with a filter.
import { useState } from "preact/hooks";
import { clockTime, count, duration, seconds } from "../core/format";
import { useLive } from "../core/live";
import { ErrorBox } from "../parts/basics";
import type { JobDetail, TimelineEntry, TimelinePage } from "../types";

const PAGE = 50;

export function Timeline({ job }: { job: JobDetail }) {
  const [text, setText] = useState("");
  const [withCheckpoints, setWithCheckpoints] = useState(false);
  const [pages, setPages] = useState<number[]>([]); // the first entries of the pages that were left, by their numbers
  const before = pages[pages.length - 1];
  const query = `limit=${PAGE}&checkpoints=${Number(withCheckpoints)}&text=${encodeURIComponent(text.trim())}${before ? `&before=${before}` : ""}`;
  const { data, error } = useLive<TimelinePage>(`/jobs/${job.job_id}/timeline?${query}`, (ids) => ids.includes(job.job_id), 500, 0, true);
  const began = seconds(job.submitted_at);
  const entries = data?.entries ?? [];
  const hidden = data?.num_checkpoints ?? 0;
  const filter = (change: () => void) => {
    change();
    setPages([]);
  };
  const first = pages.length * PAGE;
  return (
    <>
      <div class="filters">
        <input type="search" data-search class="search" aria-label="Filter the timeline" placeholder="Filter" value={text} onInput={(event) => filter(() => setText(event.currentTarget.value))} />
        {hidden > 0 && (
          <label class="check">
            <input type="checkbox" checked={withCheckpoints} onChange={(event) => filter(() => setWithCheckpoints(event.currentTarget.checked))} /> {count(hidden)} checkpoint events
          </label>
        )}
      </div>
      <ErrorBox error={error} />
      {data && (
      <div class="scroll" tabIndex={0} role="region" aria-label="Timeline">
        <table class="plain">
          <thead>
            <tr>
              <th class="num">After</th>
              <th>Time</th>
              <th class="num" title="Attempt and node">
                #
              </th>
              <th>Event</th>
              <th>Details</th>
            </tr>
          </thead>
          <tbody>
            {entries.map((entry) => (
              <tr key={entry.id}>
                <td class="num">{duration(seconds(entry.at) - began)}</td>
                <td>
                  <time dateTime={entry.at} title={entry.at}>
                    {clockTime(entry.at, true)}
                  </time>
                </td>
                <td class="num">
                  {entry.generation ?? ""}
                  {entry.generation !== null && entry.rank !== null ? `.${entry.rank}` : ""}
                </td>
                <td>
                  <code>{entry.kind}</code>
                </td>
                <td class="prose">{details(entry)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      )}
      {data && data.num_matching > PAGE && (
        <p class="pager">
          <button type="button" disabled={!pages.length} onClick={() => setPages(pages.slice(0, -1))}>
            Newer
          </button>
          <span class="muted">
            {count(Math.min(first + 1, data.num_matching))}–{count(Math.min(first + PAGE, data.num_matching))} of {count(data.num_matching)}
          </span>
          <button type="button" disabled={first + PAGE >= data.num_matching} onClick={() => setPages([...pages, (entries[entries.length - 1] as { id: number }).id])}>
            Older
          </button>
        </p>
      )}
    </>
  );
}

function details(entry: TimelineEntry): string {
  const cause = [entry.reason, entry.message].filter(Boolean).join(": ");
  const extra: string[] = [];
  if ("step" in entry.data) extra.push(`step ${entry.data.step}`);
  if ((entry.kind === "attempt.requested" || entry.kind === "attempt.refused") && entry.data.offer) extra.push(String(entry.data.offer));
  if (typeof entry.data.until === "number") extra.push(`not before ${clockTime(new Date(entry.data.until * 1000).toISOString())}`);
  return [cause, extra.join("; ")].filter(Boolean).join(" · ");
}
