// The time axis: linear, but long times in which nothing exists are collapsed to a narrow gap.

export interface Gap {
  from: number;
  to: number;
  x: number;
}

export interface Scale {
  x: (at: number) => number;
  width: number;
  gaps: Gap[];
  ticks: { at: number; x: number }[];
}

export const GAP_PX = 24;
const MAX_IDLE_S = 600;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const TICK_PX = 90;

/** `busy`: times in which something exists, in any order. `pxPerSecond`: null to fit into `room` pixels. */
export function timeScale(busy: { from: number; to: number }[], room: number, pxPerSecond: number | null): Scale {
  const sorted = [...busy].sort((a, b) => a.from - b.from);
  const parts: { from: number; to: number }[] = [];
  for (const { from, to } of sorted) {
    const last = parts[parts.length - 1];
    if (last && from - last.to <= MAX_IDLE_S) last.to = Math.max(last.to, to);
    else parts.push({ from, to });
  }
  const total = parts.reduce((sum, part) => sum + part.to - part.from, 0) || 1;
  const gapRoom = Math.max(0, parts.length - 1) * GAP_PX;
  const density = pxPerSecond ?? Math.max(1, room - gapRoom) / total;
  const gaps: Gap[] = [];
  const starts: { from: number; to: number; x: number }[] = [];
  let x = 0;
  parts.forEach((part, index) => {
    if (index) {
      gaps.push({ from: (parts[index - 1] as { to: number }).to, to: part.from, x });
      x += GAP_PX;
    }
    starts.push({ ...part, x });
    x += (part.to - part.from) * density;
  });
  const position = (at: number) => {
    let found = starts[0];
    for (const start of starts) if (start.from <= at) found = start;
    if (!found) return 0;
    return found.x + (Math.max(found.from, Math.min(found.to, at)) - found.from) * density;
  };
  const step = STEPS_S.find((seconds) => seconds * density >= TICK_PX) ?? 604800;
  const ticks: { at: number; x: number }[] = [];
  const offset = new Date().getTimezoneOffset() * 60;
  for (const part of starts) {
    for (let at = Math.ceil((part.from - offset) / step) * step + offset; at <= part.to; at += step) {
      ticks.push({ at, x: position(at) });
    }
  }
  return { x: position, width: x, gaps, ticks: ticks.slice(0, 400) };
}
