"""The trace of one history: what happened when, as text for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from faultworld.virtual_time import START


@dataclass
class Trace:
    #: (seconds from the start, subject, text)
    lines: list[tuple[float, str, str]] = field(default_factory=list)

    def record(self, now: float, subject: str, text: str) -> None:
        self.lines.append((now - START, subject, text))

    def text(self) -> str:
        return "\n".join(f"{at:9.2f}  {subject:<16} {text}" for at, subject, text in self.lines)
