"""Progress on stderr while a command takes long; shown only if stderr is a terminal."""

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

Advance = Callable[[int], None]


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Advance]:
    """Show a progress bar of `length` units; yields a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda steps: None  # noqa: ARG005
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


@contextmanager
def spinner(label: str, detail: Callable[[], str] = str) -> Iterator[None]:
    """Show an animation and the elapsed seconds once the block has taken more than a second.

    `detail` returns a text that is shown after them. The line is cleared when the block ends. The block must not print
    anything.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_animate, args=(label, detail, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _animate(label: str, detail: Callable[[], str], ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(_AFTER_S):
        return
    step = 0
    while not ended.is_set():
        position = abs((step + _WIDTH) % (2 * _WIDTH) - _WIDTH)
        bar = f"[{' ' * position}###{' ' * (_WIDTH - position)}]"
        line = f"{label}  {bar}  {time.monotonic() - began:.0f} s  {detail()}".rstrip()
        sys.stderr.write(_CLEAR_LINE + line)
        sys.stderr.flush()
        step += 1
        ended.wait(_EVERY_S)
    sys.stderr.write(_CLEAR_LINE)
    sys.stderr.flush()
