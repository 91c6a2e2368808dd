"""Lines that are redrawn in place on the terminal until Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from shutil import get_terminal_size

import click

from perdure.sdk.connection.client import ConnectionLost

_HOME, _CLEAR, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


def watch(draw: Callable[[], Iterable[str]], *, every_s: float) -> None:
    """Redraw every `every_s` seconds. While the controller does not answer, show that, and keep trying.

    At most as many lines as the terminal has are taken from `draw`.
    """
    in_place = sys.stdout.isatty()
    if in_place:
        sys.stdout.write(_CLEAR)
    try:
        while True:
            try:
                lines = list(islice(draw(), get_terminal_size().lines if in_place else None))
            except ConnectionLost as lost:
                lines = [lost.message]
            _show([*lines, "", f"{time.strftime('%H:%M:%S %Z')}, every {every_s:g} s; Ctrl-C to quit"], in_place)
            time.sleep(every_s)
    except KeyboardInterrupt:
        click.echo()


def _show(lines: Sequence[str], in_place: bool) -> None:
    if not in_place:
        click.echo("\n".join(lines))
        return
    height = get_terminal_size().lines - 1
    shown = [click.unstyle(line) if os.environ.get("NO_COLOR") else line for line in lines[:height]]
    sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in shown) + _CLEAR_BELOW)
    sys.stdout.flush()
