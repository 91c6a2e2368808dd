"""Reports how far the program is: its step and numbers such as the loss, for the graphs on the job's page.

The newest report is the file `$PERDURE_RUN_DIR/progress.json`: `step`, `at` (epoch seconds) and `values`. The agent
sends it to the controller with what the machine uses. Without an agent there is no such directory, and nothing is
written. A report that cannot be written does not stop training.
"""

from __future__ import annotations

import json
import logging
import os
import time

from perdure.checkpoint.preemption import run_dir

TYPE_CHECKING = False  # type checkers assume True; importing `typing` would take most of this import's time
if TYPE_CHECKING:
    from typing import SupportsFloat, SupportsIndex

logger = logging.getLogger("perdure.checkpoint")

MIN_INTERVAL_S = 1.0
"""Reports that follow the last written one sooner than this are dropped, so that every training step may report."""
MAX_VALUES = 8

_written_at = float("-inf")  # monotonic


def report_progress(step: SupportsIndex, **values: SupportsFloat | SupportsIndex) -> None:
    """Report the current step and up to 8 named numbers, such as `report_progress(step, loss=loss)`.

    Call it as often as you like: at most one report a second is written, and only then is a value converted to a
    number, which for a tensor may wait for its device. A value that is not finite is left out. Of the processes that
    torchrun starts on a machine, the first one reports. Raises TypeError for what is no number.
    """
    global _written_at  # noqa: PLW0603 - a process has one program
    now = time.monotonic()
    if now - _written_at < MIN_INTERVAL_S:
        return
    directory = run_dir()
    if directory is None or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    _written_at = now
    numbers = {name: float(value) for name, value in list(values.items())[:MAX_VALUES]}
    report = {"step": step.__index__(), "at": time.time(), "values": numbers}
    path = os.path.join(directory, "progress.json")
    try:
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(file.name, path)  # a reader sees one report or the other
    except OSError as error:
        logger.debug("reporting step %d: %s", report["step"], error)
