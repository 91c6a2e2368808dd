"""Where the `perdure` command starts: from here on, Ctrl-C ends it without a word, exit code 130.

What the command imports takes a tenth of a second, and a `KeyboardInterrupt` could be raised in any line of it. So
until there is somebody who handles that, the signal ends the process itself. Nothing else is imported here.
"""

from __future__ import annotations

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found] # no enums yet

EXIT_INTERRUPTED = 130


def main() -> None:
    """The entry point of the `perdure` script."""
    if getsignal(SIGINT) is default_int_handler:  # else whoever started it wants the signal to be ignored
        signal(SIGINT, _end)
    from perdure.cli.main import main

    main()


def raise_again() -> None:
    """From now on Ctrl-C is a `KeyboardInterrupt` again, if it was before `main`."""
    if getsignal(SIGINT) is _end:
        signal(SIGINT, default_int_handler)


def end_line() -> None:
    """Of the terminal, on which `^C` stands."""
    if os.isatty(2):
        os.write(2, b"\n")


def _end(*_: object) -> None:
    end_line()
    os._exit(EXIT_INTERRUPTED)
