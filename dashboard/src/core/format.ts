// Texts for people: durations, money, times, places.

export function seconds(iso: string): number {
  return Date.parse(iso) / 1000;
}

/** `95` → `1m 35s`; two units at most. */
export function duration(value: number): string {
  const total = Math.max(0, Math.round(value));
  const [d, h, m, s] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60, total % 60];
  if (d) return h ? `${d}d ${h}h` : `${d}d`;
  if (h) return m ? `${h}h ${m}m` : `${h}h`;
  if (m) return s ? `${m}m ${s}s` : `${m}m`;
  return `${s}s`;
}

export function money(usd: number): string {
  if (usd === 0) return "$0";
  if (usd > 0 && usd < 0.0001) return "<$0.0001";
  const digits = Math.abs(usd) < 0.1 ? 4 : 2; // as the command line
  return `$${usd.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

export function bytes(value: number): string {
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = value / 1024;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size.toFixed(size < 10 ? 1 : 0)} ${units[unit]}`;
}

/** The share of the on-demand price that was saved; null if nothing was bought. */
export function savedShare(cost: number, onDemand: number): number | null {
  return onDemand > 0 ? 1 - cost / onDemand : null;
}

export function percent(share: number | null): string {
  return share === null ? "" : `${Math.round(share * 100)}%`;
}

export function clockTime(iso: string, withDate = false): string {
  const date = new Date(iso);
  const two = (n: number) => String(n).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withDate ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}` : time;
}

/** `aws us-east-1b`; the zone contains the region, and on some clouds the name of the cloud. */
export function place(at: { cloud: string | null; region: string | null; zone: string | null }): string {
  if (at.cloud === null) return "";
  const where = at.zone || at.region || "";
  return where.startsWith(`${at.cloud}-`) ? where : [at.cloud, where].filter(Boolean).join(" ");
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

const ORDINALS = ["zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"];
export function ordinal(n: number): string {
  return ORDINALS[n] ?? `${n}th`;
}
