"""Whether this machine is about to be taken: `notice.json` in the directory that the agent shares with the workload, or
SIGTERM, which is all that a program hears where no agent runs it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

_FRESH_S = 0.05  # how long an answer is good for, so that every training step may ask
_WATCH_S = 0.1


def run_dir() -> str | None:
    """The directory that the agent shares with the workload, or None when no agent runs this process."""
    return os.environ.get("PERDURE_RUN_DIR") or None


class _Seen:
    """The last look: at which file, when (monotonic seconds), and whether it was there."""

    path = ""
    at_s = float("-inf")
    exists = False
    terminated = False
    listens = False


_seen = _Seen()


def listen() -> None:
    """From now on SIGTERM is a notice, where it would only have ended the program: the first one is remembered, the
    second one ends it. Does nothing where the program handles SIGTERM itself, or off its main thread."""
    if _seen.listens or threading.current_thread() is not threading.main_thread():
        return
    _seen.listens = True
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _remember)


def _remember(number: int, _frame: FrameType | None) -> None:
    _seen.terminated = True
    signal.signal(number, signal.SIG_DFL)


def preempted() -> bool:
    """Whether the workload was asked to stop: save now, then leave. Cheap enough for every step; at most 50 ms old.

    A program that asks is trusted to leave: from the first call on SIGTERM no longer ends it at once (`listen`).
    """
    listen()
    if _seen.terminated:
        return True
    directory = run_dir()
    if directory is None:
        return False
    path, now_s = os.path.join(directory, "notice.json"), time.monotonic()
    if path != _seen.path or now_s - _seen.at_s > _FRESH_S:
        _seen.path, _seen.at_s, _seen.exists = path, now_s, os.path.exists(path)
    return _seen.exists


def on_notice(call: Callable[[float | None], object]) -> Callable[[], None]:
    """Call `call` once, with the deadline (epoch seconds, or None where none is named), when the machine is about to be
    taken; in a thread of its own, within `_WATCH_S`. Returns what stops waiting for it. As with `preempted`, from now
    on SIGTERM no longer ends the program at once.

    What `call` raises is logged. Saving is the training loop's: a thread can not know when the state is whole.
    """
    listen()
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_WATCH_S):
            if preempted():
                try:
                    call(deadline())
                except Exception:
                    import logging  # half of this module's import time, and hardly ever wanted

                    logging.getLogger("perdure.checkpoint").exception("the function to be called at a notice failed")
                return

    threading.Thread(target=watch, name="perdure-notice", daemon=True).start()
    return stopped.set


def deadline() -> float | None:
    """When the machine will be taken, in epoch seconds; None while no notice stands or where it names no time."""
    import json

    directory = run_dir()
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, "notice.json"), encoding="utf-8") as file:
            value = json.load(file)["deadline"]
        return None if value is None else float(value)
    except (OSError, ValueError, TypeError, KeyError):
        return None
