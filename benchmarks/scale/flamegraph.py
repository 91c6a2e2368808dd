"""Renders folded stacks as a flame graph: one SVG without scripts, small enough for the documentation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape

WIDTH, ROW = 1200, 15
MIN_SHARE = 0.003  # of all samples; smaller frames are not drawn
_CHARACTER_WIDTH = 6.0  # pixels, of the font below
_KINDS = (
    ("perdure", r"\((controller|recovery|sdk|agent|checkpoint)/", "#f4a261"),
    ("SQL", r"\((sqlalchemy|sqlmodel|psycopg|alembic)/", "#8ab6d6"),
    ("HTTP and the event loop", r"\((uvicorn|starlette|fastapi|asyncio|anyio|websockets)/", "#a3cfa0"),
    ("other", "", "#d9d4c7"),
)


@dataclass
class Frame:
    """A function at one place of the stacks. `count` is the number of samples that contain it."""

    name: str
    count: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)


def read(lines: Iterable[str], *, hidden: str = r"^\b$") -> Frame:
    """Parse `lines` of the form `thread;caller;…;callee count`. Frames that match `hidden` are left out."""
    root = Frame("all")
    hidden_pattern = re.compile(hidden)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frame = root
        frame.count += int(count)
        for name in stack.split(";"):
            if not hidden_pattern.search(name):
                frame = frame.callees.setdefault(name, Frame(name))
                frame.count += int(count)
    return root


def render(root: Frame, title: str) -> str:
    """Draw the graph. The wider a frame, the more samples contain it; its callees are above it."""
    min_count = root.count * MIN_SHARE
    depth = _depth(root, min_count)
    height = (depth + 3) * ROW
    kinds = [kind for kind in _KINDS if kind[0] in _kinds_in(root)]
    legend = "".join(
        f'<rect x="{8 + 160 * n}" y="{height - 12}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{22 + 160 * n}" y="{height - 3}">{name}</text>'
        for n, (name, _, colour) in enumerate(kinds)
    )
    boxes = "\n".join(_boxes(root, 0.0, 0, WIDTH / root.count, min_count, height - 2 * ROW))
    style = "text{font:10px monospace;fill:#222}rect{stroke:#fff;stroke-width:.5}"
    classes = "".join(f".k{n}{{fill:{colour}}}" for n, (_, _, colour) in enumerate(_KINDS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">\n'
        f'<style>{style}{classes}</style><rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="8" y="11" style="font-size:12px">{escape(title)}</text>{legend}\n{boxes}\n</svg>\n'
    )


def _boxes(frame: Frame, x: float, level: int, scale: float, min_count: float, floor: float) -> Iterator[str]:
    width, y = frame.count * scale, floor - (level + 1) * ROW
    kind = _kind(frame.name)
    share = f"{100 * frame.count * scale / WIDTH:.1f} %"
    shown = _cut(frame.name, width)
    text = f'<text x="{x + 3:.0f}" y="{y + 11}">{escape(shown)}</text>' if shown else ""
    box = f'<rect class="k{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}">'
    yield f"{box}<title>{escape(frame.name)}, {share}</title></rect>{text}"
    for callee in sorted(frame.callees.values(), key=lambda callee: callee.name):
        if callee.count >= min_count:
            yield from _boxes(callee, x, level + 1, scale, min_count, floor)
            x += callee.count * scale


def _cut(name: str, width: float) -> str:
    """As much of `name` as fits; "" if that is too short to read."""
    characters = int((width - 6) / _CHARACTER_WIDTH)
    if len(name) <= characters:
        return name
    return name[: characters - 1] + "…" if characters >= 4 else ""


def _depth(frame: Frame, min_count: float) -> int:
    return 1 + max(
        (_depth(callee, min_count) for callee in frame.callees.values() if callee.count >= min_count), default=0
    )


def _kind(name: str) -> int:
    return next(n for n, (_, pattern, _) in enumerate(_KINDS) if re.search(pattern, name))


def _kinds_in(root: Frame) -> Counter[str]:
    counts: Counter[str] = Counter()
    pending = [root]
    while pending:
        frame = pending.pop()
        counts[_KINDS[_kind(frame.name)][0]] += 1
        pending += frame.callees.values()
    return counts
