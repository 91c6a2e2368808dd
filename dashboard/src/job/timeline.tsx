// The events of a job, newest first, with a filter.
import { useState } from "preact/hooks";
import { clockTime, count, duration, seconds } from "../core/format";
import type { JobDetail, TimelineEntry } from "../types";

const MAX_ROWS = 200;

export function Timeline({ job }: { job: JobDetail }) {
  const [text, setText] = useState("");
  const [withCheckpoints, setWithCheckpoints] = useState(false);
  const began = seconds(job.submitted_at);
  const wanted = text.trim().toLowerCase();
  const entries = job.timeline
    .filter((entry) => withCheckpoints || !entry.kind.startsWith("checkpoint."))
    .filter((entry) => !wanted || `${entry.kind} ${details(entry)}`.toLowerCase().includes(wanted))
    .reverse();
  const hidden = job.timeline.filter((entry) => entry.kind.startsWith("checkpoint.")).length;
  return (
    <>
      <div class="filters">
        <input type="search" data-search class="search" aria-label="Filter the timeline" placeholder="Filter" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        {hidden > 0 && (
          <label class="check">
            <input type="checkbox" checked={withCheckpoints} onChange={(event) => setWithCheckpoints(event.currentTarget.checked)} /> {count(hidden)} checkpoint events
          </label>
        )}
      </div>
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
            {entries.slice(0, MAX_ROWS).map((entry, index) => (
              <tr key={entries.length - index}>
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
      {entries.length > MAX_ROWS && (
        <p class="muted">
          The newest {MAX_ROWS} of {count(entries.length)}. <code>perdure jobs show {job.job_id}</code> lists all.
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
