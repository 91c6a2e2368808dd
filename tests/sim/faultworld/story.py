"""Who did what when: the lines of one history, for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from faultworld.timing import START


@dataclass
class Story:
    lines: list[tuple[float, str, str]] = field(default_factory=list)

    def tell(self, now: float, who: str, what: str) -> None:
        self.lines.append((now - START, who, what))

    def text(self) -> str:
        return "\n".join(f"{at:9.2f}  {who:<16} {what}" for at, who, what in self.lines)
