"""Whether this machine is about to be taken.

The agent writes `notice.json` into the directory that it shares with the workload. Without an agent, SIGTERM is the
only notice that a program receives, and SIGUSR1 if Slurm runs it. Only programs that ask (`preempted`, `on_notice`)
have these signals handled: a program that never asks would survive a SIGTERM, and be killed later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

TYPE_CHECKING = False  # type checkers assume True; importing `typing` would take most of this import's time
if TYPE_CHECKING:
    from typing import NoReturn

_MAX_AGE_S = 0.05  # how long the existence of the file is cached, so that every training step may check
_POLL_S = 0.1


def run_dir() -> str | None:
    """The directory that the agent shares with the workload, or None when no agent runs this process."""
    return os.environ.get("PERDURE_RUN_DIR") or None


#: How a preempted program ends: as if SIGTERM had ended it, so that nobody takes it for finished.
PREEMPTED_EXIT_CODE = 128 + signal.SIGTERM


class _NoticeCache:
    """What this process knows of a notice."""

    def __init__(self) -> None:
        self.path = ""  # of the file that was checked last
        self.checked_at_s = float("-inf")  # monotonic
        self.exists = False  # whether the file was there
        self.terminated = False  # whether a signal was received
        self.previous: dict[int, object] = {}  # signal → its handler before ours
        self.running: set[int] = set()  # signals whose previous handler is running


_cache = _NoticeCache()


# --- forks: `terminate` of multiprocessing is no notice to a program's workers ---------------------------------------

_mask_before_fork = threading.local()


def _hold_signals() -> None:
    """Python discards signals that a forked process receives before it runs Python: they are held back until then."""
    if _cache.previous:
        _mask_before_fork.value = signal.pthread_sigmask(signal.SIG_BLOCK, _cache.previous)


def _release_signals() -> None:
    mask, _mask_before_fork.value = getattr(_mask_before_fork, "value", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_signals() -> None:
    """In the forked process: handle signals as the program did before it asked for notices."""
    for number, previous in _cache.previous.items():
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, previous)  # type: ignore[arg-type]
    _cache.previous.clear()
    _release_signals()


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_forget_signals)


def handle_signals() -> None:
    """Make the first SIGTERM (on Slurm also the first SIGUSR1) a notice; the second one does what it did before.

    Handlers of the program and of other libraries run as well, whether they were installed earlier or are installed
    later: each call puts ours before the current one. Does nothing outside the main thread, or for an ignored signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGUSR1) if "SLURM_JOB_ID" in os.environ else (signal.SIGTERM,):
        current = signal.getsignal(number)
        if current is not _on_signal and current not in (signal.SIG_IGN, None):
            _cache.previous[number] = current
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _cache.terminated = True
    previous = _cache.previous.get(number, signal.SIG_DFL)
    if not callable(previous):
        signal.signal(number, signal.SIG_DFL)
    elif number not in _cache.running:  # it may call ours in turn
        _cache.running.add(number)
        try:
            previous(number, frame)
        finally:
            _cache.running.discard(number)


def preempted() -> bool:
    """Whether the workload was asked to stop: save now, then exit. Cheap enough for every step; at most 50 ms old.

    From the first call on, SIGTERM no longer ends the program at once: a program that calls this is expected to exit,
    with `exit_preempted`.
    """
    if not _cache.terminated:
        handle_signals()
    return is_noticed()


def is_noticed() -> bool:
    """As `preempted`, but no signal is handled from now on that was not handled before."""
    if _cache.terminated:
        return True
    directory = run_dir()
    if directory is None:
        return False
    path, now_s = os.path.join(directory, "notice.json"), time.monotonic()
    if path != _cache.path or now_s - _cache.checked_at_s > _MAX_AGE_S:
        _cache.path, _cache.checked_at_s, _cache.exists = path, now_s, os.path.exists(path)
    return _cache.exists


def exit_preempted() -> NoReturn:
    """End the program, by SystemExit with the code 143: Kubernetes and Slurm then do not take it for finished.

    The agent knows of the notice, and ignores the code.
    """
    raise SystemExit(PREEMPTED_EXIT_CODE)


def on_notice(call: Callable[[float | None], object]) -> Callable[[], None]:
    """Call `call` once, in a separate thread, when the machine is about to be taken; returns a way to cancel it.

    `call` receives the deadline (epoch seconds, or None if the notice has none), within 0.1 s of the notice. What it
    raises is logged. Leave saving to the training loop: another thread cannot know when the state is consistent. As
    with `preempted`, from now on SIGTERM no longer ends the program at once.
    """
    handle_signals()
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_POLL_S):
            if is_noticed():
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
