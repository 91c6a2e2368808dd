// Lines of a log: colors of terminals (SGR) become classes, progress bars collapse, all other escapes are shown as text.

export interface Span {
  text: string;
  classes: string;
}

const ESCAPE = /\x1b\[([\d;]*)m/g;
const UNSHOWN = /[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g;

/** What a terminal shows of a line that was overwritten by carriage returns. */
export function collapsed(line: string): string {
  if (!line.includes("\r")) return line;
  const parts = line.split("\r").filter(Boolean);
  return parts[parts.length - 1] ?? "";
}

export function plain(line: string): string {
  return collapsed(line).replace(ESCAPE, "");
}

function visible(text: string): string {
  return text.replace(UNSHOWN, (character) => {
    const code = character.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

export function spans(line: string): Span[] {
  const text = collapsed(line);
  if (!text.includes("\x1b[")) return [{ text: visible(text), classes: "" }];
  const found: Span[] = [];
  let [color, bold, at] = ["", false, 0];
  const add = (part: string) => {
    if (part) found.push({ text: visible(part), classes: `${color}${bold ? " bold" : ""}`.trim() });
  };
  for (const match of text.matchAll(ESCAPE)) {
    add(text.slice(at, match.index));
    at = match.index + match[0].length;
    for (const word of (match[1] || "0").split(";")) {
      const code = Number(word);
      if (code === 0) [color, bold] = ["", false];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) color = "";
      else if (code >= 30 && code <= 37) color = `c${code - 30}`;
      else if (code >= 90 && code <= 97) color = `c${code - 90}`;
    }
  }
  add(text.slice(at));
  return found;
}
