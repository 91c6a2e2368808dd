// The lines of a job's log, as they arrive. Offsets are bytes of the transcript, which is the same at every reading.
import { open } from "../core/api";

const MAX_BYTES = 64 * 2 ** 20; // a browser keeps no more
const TAIL_LINES = 20_000;
const RETRY_MS = 1500;

export interface LogState {
  /** Shared by all states; only `lines.length` as it was then may be read. */
  lines: string[];
  count: number;
  /** Bytes before the first line that were not loaded. */
  startsAt: number;
  bytes: number;
  isOver: boolean;
  isFull: boolean;
  error: Error | null;
}

export class LogStore {
  state: LogState = { lines: [], count: 0, startsAt: 0, bytes: 0, isOver: false, isFull: false, error: null };
  private rest = "";
  private abort = new AbortController();
  private stopped = false;

  constructor(
    private readonly path: string,
    private readonly onChange: () => void,
    private readonly fromStart: boolean,
  ) {
    void this.run();
  }

  stop(): void {
    this.stopped = true;
    this.abort.abort();
  }

  private async run(): Promise<void> {
    let query = this.fromStart ? "offset=0" : `tail=${TAIL_LINES}`;
    while (!this.stopped) {
      try {
        const response = await open(`${this.path}${this.path.includes("?") ? "&" : "?"}follow=1&${query}`, { signal: this.abort.signal });
        if (!query.startsWith("offset")) this.state = { ...this.state, startsAt: Number(response.headers.get("Perdure-Offset") ?? 0) };
        await this.read(response);
        this.flush();
        this.update({ isOver: true, error: null });
        return;
      } catch (error) {
        if (this.stopped || this.state.isFull) return;
        this.update({ error: error as Error });
      }
      // Continue at the first byte of the line that was cut.
      query = `offset=${this.state.startsAt + this.state.bytes}`;
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
      if (this.state.error) this.state = { ...this.state, error: null };
      const cut = value.lastIndexOf(10);
      this.add(decoder.decode(value, { stream: true }));
      if (cut >= 0) {
        this.state.bytes += pending + cut + 1;
        pending = value.length - cut - 1;
      } else {
        pending += value.length;
      }
      if (this.state.bytes > MAX_BYTES) {
        this.update({ isFull: true });
        this.abort.abort();
        throw new Error("full");
      }
      this.update({});
    }
  }

  private add(text: string): void {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop() as string;
    for (const part of parts) this.state.lines.push(part);
  }

  private flush(): void {
    if (this.rest) this.state.lines.push(this.rest);
    this.rest = "";
  }

  private update(changes: Partial<LogState>): void {
    this.state = { ...this.state, ...changes, count: this.state.lines.length };
    this.onChange();
  }
}
