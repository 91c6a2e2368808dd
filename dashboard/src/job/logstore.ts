// The lines of a job's log: the newest ones as they arrive, earlier ones by pages when they are looked at. Lines are
// counted from 0; offsets are bytes of the transcript, which is the same at every reading.
import { get, open } from "../core/api";

const TAIL_LINES = 5_000;
/** When more characters of new lines than this are kept, the older half is dropped, and read again if looked at. */
const MAX_TAIL_CHARS = 16 * 2 ** 20;
/** Of a log that is loaded as a whole. */
export const MAX_WHOLE_BYTES = 64 * 2 ** 20;
const PAGE_LINES = 250;
const MAX_PAGES = 80;
const MAX_LOADING = 3;
const MAX_LINE_CHARS = 16_384; // as the pages of the controller
const RETRY_MS = 1500;

export interface LogSummary {
  lines: number;
  bytes: number;
  is_final: boolean;
  attempts: [number, number, number][];
}

export class LogStore {
  /** The newest lines; the first of them is line `first`. */
  tail: string[] = [];
  first = 0;
  bytes = 0;
  isOver = false;
  error: Error | null = null;
  /** Where attempts begin, by their numbers. */
  marks = new Map<number, number>();
  private rest = "";
  private tailChars = 0;
  private pages = new Map<number, string[] | null>(); // null: it is being loaded
  private wanted: [number, number] = [0, 0]; // pages
  private loading = 0;
  private abort = new AbortController();
  private stopped = false;

  constructor(
    private readonly path: string,
    private readonly onChange: () => void,
    private readonly isWhole: boolean,
  ) {
    void this.run();
  }

  get count(): number {
    return this.first + this.tail.length;
  }

  stop(): void {
    this.stopped = true;
    this.abort.abort();
  }

  /** A line; undefined while it is not loaded. */
  line(at: number): string | undefined {
    if (at >= this.first) return this.tail[at - this.first];
    return this.pages.get(Math.floor(at / PAGE_LINES))?.[at % PAGE_LINES];
  }

  /** Load the lines from `first` to `end` that are missing. Only the last range that was wanted counts. */
  want(first: number, end: number): void {
    this.wanted = [Math.floor(first / PAGE_LINES), Math.ceil(Math.min(end, this.first) / PAGE_LINES)];
    for (let page = this.wanted[0]; page < this.wanted[1]; page += 1) {
      const known = this.pages.get(page);
      if (known !== undefined) {
        this.pages.delete(page); // the pages that were looked at last are at the end
        this.pages.set(page, known);
      } else if (this.loading < MAX_LOADING) void this.loadPage(page);
    }
  }

  url(part: string, query: string): string {
    const [path, own] = this.path.split("?");
    return `${path}${part}?${own ? `${own}&` : ""}${query}`;
  }

  private async loadPage(page: number): Promise<void> {
    this.pages.set(page, null);
    this.loading += 1;
    try {
      const response = await open(this.url("/lines", `first=${page * PAGE_LINES}&count=${PAGE_LINES}`), { signal: this.abort.signal });
      const lines = (await response.text()).split("\n");
      lines.pop();
      this.pages.set(page, lines);
      for (const old of this.pages.keys()) {
        if (this.pages.size <= MAX_PAGES) break;
        this.pages.delete(old);
      }
    } catch (error) {
      this.pages.delete(page);
      if (this.stopped) return;
      this.error = error as Error;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS)); // then whoever still looks at it asks again
      this.error = null;
    } finally {
      this.loading -= 1;
    }
    this.want(this.wanted[0] * PAGE_LINES, this.wanted[1] * PAGE_LINES);
    this.onChange();
  }

  private async loadMarks(): Promise<void> {
    const summary = await get<LogSummary>(this.url("/summary", ""), this.abort.signal);
    for (const [, generation, line] of summary.attempts) this.marks.set(generation, line);
    this.onChange();
  }

  private async run(): Promise<void> {
    let query = this.isWhole ? "offset=0" : `tail=${TAIL_LINES}`;
    while (!this.stopped) {
      try {
        const response = await open(this.url("", `follow=1&${query}`), { signal: this.abort.signal });
        if (!query.startsWith("offset")) {
          this.bytes = Number(response.headers.get("Perdure-Offset"));
          this.first = Number(response.headers.get("Perdure-Line"));
          if (this.first) this.loadMarks().catch(() => undefined);
        }
        await this.read(response);
        this.flush();
        this.isOver = true;
        this.error = null;
        this.onChange();
        return;
      } catch (error) {
        if (this.stopped) return;
        this.error = error as Error;
        this.onChange();
      }
      // Continue at the first byte of the line that was cut; before the first answer, begin again.
      if (this.count || this.bytes) query = `offset=${this.bytes}`;
      this.rest = "";
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  private async read(response: Response): Promise<void> {
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    const decoder = new TextDecoder();
    let pending = 0; // bytes of `rest`
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      this.error = null;
      const cut = value.lastIndexOf(10);
      this.add(decoder.decode(value, { stream: true }));
      if (cut >= 0) {
        this.bytes += pending + cut + 1;
        pending = value.length - cut - 1;
      } else {
        pending += value.length;
      }
      this.onChange();
    }
  }

  private add(text: string): void {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop() as string;
    for (const part of parts) this.push(part);
    if (this.tailChars > MAX_TAIL_CHARS && !(this.isWhole && this.bytes < MAX_WHOLE_BYTES)) this.dropOlder();
  }

  private push(line: string): void {
    const shown = line.length > MAX_LINE_CHARS ? `${line.slice(0, MAX_LINE_CHARS)} [... and ${line.length - MAX_LINE_CHARS} more characters]` : line;
    const mark = attemptBegun(shown);
    if (mark !== null) this.marks.set(mark, this.count);
    this.tail.push(shown);
    this.tailChars += shown.length;
  }

  private dropOlder(): void {
    const dropped = this.tail.splice(0, Math.floor(this.tail.length / 2));
    this.first += dropped.length;
    for (const line of dropped) this.tailChars -= line.length;
    // The last page may have been read when it had fewer lines.
    this.pages.delete(Math.floor((this.first - dropped.length) / PAGE_LINES));
  }

  private flush(): void {
    if (this.rest) this.push(this.rest);
    this.rest = "";
  }
}

export const MARK = /^--- attempt (\d+)(?: of task \S+)? (on|refused|ended)/;

function attemptBegun(line: string): number | null {
  if (!line.startsWith("--- attempt")) return null;
  const match = MARK.exec(line);
  return match?.[2] === "on" ? Number(match[1]) : null;
}
