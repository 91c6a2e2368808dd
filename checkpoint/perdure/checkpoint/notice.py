"""Whether this machine is about to be taken.

The agent writes `notice.json` into the directory that it shares with the workload. Without an agent, SIGTERM is the
only notice that a program receives.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

_MAX_AGE_S = 0.05  # how long the existence of the file is cached, so that every training step may check
_POLL_S = 0.1


def run_dir() -> str | None:
    """The directory that the agent shares with the workload, or None when no agent runs this process."""
    return os.environ.get("PERDURE_RUN_DIR") or None


class _NoticeCache:
    """What this process knows of a notice."""

    path = ""  # of the file that was checked last
    checked_at_s = float("-inf")  # monotonic
    exists = False  # whether the file was there
    terminated = False  # whether SIGTERM was received
    handles_sigterm = False


_cache = _NoticeCache()


def handle_sigterm() -> None:
    """Make the first SIGTERM a notice; the second one ends the program. Does nothing if the program handles SIGTERM
    itself, or outside its main thread."""
    if _cache.handles_sigterm or threading.current_thread() is not threading.main_thread():
        return
    _cache.handles_sigterm = True
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, _frame: FrameType | None) -> None:
    _cache.terminated = True
    signal.signal(number, signal.SIG_DFL)


def preempted() -> bool:
    """Whether the workload was asked to stop: save now, then exit. Cheap enough for every step; at most 50 ms old.

    From the first call on, SIGTERM no longer ends the program at once: a program that calls this is expected to exit.
    """
    handle_sigterm()
    if _cache.terminated:
        return True
    directory = run_dir()
    if directory is None:
        return False
    path, now_s = os.path.join(directory, "notice.json"), time.monotonic()
    if path != _cache.path or now_s - _cache.checked_at_s > _MAX_AGE_S:
        _cache.path, _cache.checked_at_s, _cache.exists = path, now_s, os.path.exists(path)
    return _cache.exists


def on_notice(call: Callable[[float | None], object]) -> Callable[[], None]:
    """Call `call` once, in a separate thread, when the machine is about to be taken; returns a way to cancel it.

    `call` receives the deadline (epoch seconds, or None if the notice has none), within 0.1 s of the notice. What it
    raises is logged. Leave saving to the training loop: another thread cannot know when the state is consistent. As
    with `preempted`, from now on SIGTERM no longer ends the program at once.
    """
    handle_sigterm()
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_POLL_S):
            if preempted():
                try:
                    call(deadline())
                except Exception:
                    import logging  # half of this module's import time, and rarely needed

                    logging.getLogger("perdure.checkpoint").exception("the function registered with on_notice failed")
                return

    threading.Thread(target=watch, name="perdure-notice", daemon=True).start()
    return stopped.set


def deadline() -> float | None:
    """When the machine will be taken, in epoch seconds; None if there is no notice or it has no deadline."""
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
