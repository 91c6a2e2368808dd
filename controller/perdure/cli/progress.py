"""What moves on the terminal while a command takes its time: on stderr, where somebody watches, and nowhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_AFTER_S, _EVERY_S = 1.0, 0.2
_WIDTH = 12
_CLEAR_LINE = "\r\x1b[K"

Count = Callable[[int], None]


@contextmanager
def counting(label: str, length: int) -> Iterator[Count]:
    """A bar that fills up as the yielded function is told of so much more that is done."""
    if not sys.stderr.isatty():
        yield lambda done: None  # noqa: ARG005
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


@contextmanager
def working(label: str) -> Iterator[None]:
    """A bar in which something moves, with the seconds that have passed, once it has taken more than one. It is gone
    when the block ends: nothing may be printed within."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_move, args=(label, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _move(label: str, ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(_AFTER_S):
        return
    step = 0
    while not ended.is_set():
        at = abs((step + _WIDTH) % (2 * _WIDTH) - _WIDTH)
        bar = f"[{' ' * at}###{' ' * (_WIDTH - at)}]"
        sys.stderr.write(f"{_CLEAR_LINE}{label}  {bar}  {time.monotonic() - began:.0f} s")
        sys.stderr.flush()
        step += 1
        ended.wait(_EVERY_S)
    sys.stderr.write(_CLEAR_LINE)
    sys.stderr.flush()
