// Scrolling through more lines than an element can be high. Browsers limit the height of an element, so the bar of a long
// log moves several pixels of text at once; the wheel and the keys move the text by itself, and the bar after it.
import { useEffect, useRef, useState } from "preact/hooks";

export const LINE = 20;
const MAX_HEIGHT = 12_000_000;

export interface Scroll {
  element: { current: HTMLDivElement | null };
  /** The pixel of the text that is at the top. */
  top: number;
  height: number;
  spacer: number;
  pinned: boolean;
  setPinned: (pinned: boolean) => void;
  toLine: (line: number) => void;
  /** Where a line is in the element. */
  placeOf: (line: number) => number;
}

export function useScroll(total: number): Scroll {
  const element = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const [pinned, setPinned] = useState(true);
  const full = total * LINE;
  const spacer = Math.max(1, Math.min(full, MAX_HEIGHT));
  const last = Math.max(0, full - height); // the lowest position of the text
  const scale = full > MAX_HEIGHT ? last / (MAX_HEIGHT - height) : 1; // pixels of text for a pixel of the bar
  const now = useRef({ top, last, scale, expected: -1 });
  Object.assign(now.current, { last, scale });

  const moveTo = (wanted: number) => {
    const state = now.current;
    state.top = Math.max(0, Math.min(state.last, wanted));
    setTop(state.top);
    if (element.current) {
      element.current.scrollTop = state.top / state.scale;
      state.expected = element.current.scrollTop;
    }
  };
  useEffect(() => {
    const box = element.current;
    if (!box) return;
    const observer = new ResizeObserver(() => setHeight(box.clientHeight));
    observer.observe(box);
    const onScroll = () => {
      const state = now.current;
      if (Math.abs(box.scrollTop - state.expected) >= 1) {
        state.expected = -1;
        state.top = Math.min(state.last, box.scrollTop * state.scale);
        setTop(state.top);
      }
      setPinned(state.last - state.top < LINE);
    };
    const moveBy = (event: Event, by: number) => {
      if (now.current.scale === 1) return;
      event.preventDefault();
      moveTo(now.current.top + by);
      setPinned(now.current.last - now.current.top < LINE);
    };
    const onWheel = (event: WheelEvent) => {
      if (event.deltaY && !event.ctrlKey) moveBy(event, event.deltaY * (event.deltaMode === 1 ? LINE : event.deltaMode === 2 ? box.clientHeight : 1));
    };
    const onKey = (event: KeyboardEvent) => {
      const page = box.clientHeight - LINE;
      const steps: Record<string, number> = { ArrowUp: -LINE, ArrowDown: LINE, PageUp: -page, PageDown: page, " ": page };
      const by = steps[event.key];
      if (by && event.target === box && !event.ctrlKey && !event.metaKey && !event.altKey) moveBy(event, by);
    };
    box.addEventListener("scroll", onScroll, { passive: true });
    box.addEventListener("wheel", onWheel, { passive: false });
    box.addEventListener("keydown", onKey);
    return () => {
      observer.disconnect();
      box.removeEventListener("scroll", onScroll);
      box.removeEventListener("wheel", onWheel);
      box.removeEventListener("keydown", onKey);
    };
  }, []);
  useEffect(() => {
    if (pinned) moveTo(last);
  }, [last, pinned]);
  const toLine = (line: number) => {
    setPinned(false);
    moveTo(line * LINE - height / 3);
  };
  const shown = Math.min(top, last);
  const placeOf = (line: number) => (scale === 1 ? line * LINE : shown / scale + line * LINE - shown);
  return { element, top: shown, height, spacer, pinned, setPinned, toLine, placeOf };
}
