"""What Ctrl-C does: exit code 130 without a traceback.

Until a handler exists, the signal ends the process itself: a `KeyboardInterrupt` could otherwise be raised in any line
of an import, and importing a command takes a tenth of a second. For the same reason this module imports almost nothing.
"""

from __future__ import annotations

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found] # no enums yet

EXIT_INTERRUPTED = 130


def exit_on_interrupt() -> None:
    """From now on Ctrl-C ends the process at once, unless the process was started with the signal ignored."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _exit)


def raise_on_interrupt() -> None:
    """From now on Ctrl-C raises `KeyboardInterrupt` again, if `exit_on_interrupt` had replaced that."""
    if getsignal(SIGINT) is _exit:
        signal(SIGINT, default_int_handler)


def end_line() -> None:
    """End the terminal line on which `^C` was echoed."""
    if os.isatty(2):
        os.write(2, b"\n")


def _exit(*_: object) -> None:
    end_line()
    os._exit(EXIT_INTERRUPTED)
