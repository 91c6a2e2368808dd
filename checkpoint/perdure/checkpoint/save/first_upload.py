"""What a commit waits for: the bucket must have the files of the first checkpoint of a series before its manifest.

A manifest is small and may reach the bucket long before its files. If the machine were lost in between, the bucket
would hold a single step that cannot be loaded, and every later start would have to refuse it. From the second manifest
on there is an older checkpoint to fall back to, so nothing waits, except for the record of a program that went back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from perdure.checkpoint import preemption
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")

LIMIT_S = 60.0


def wait_if_first(directory: SaveDirectory, prefix: str, paths: Sequence[str]) -> float:
    """Wait until the bucket has `paths` if `prefix` has no manifest yet; returns the seconds waited.

    The wait ends after `LIMIT_S` or at the deadline of a notice, with a warning.
    """
    if not directory.is_on_mount or directory.has_series(prefix):
        return 0.0
    began, limit_s = time.monotonic(), _limit_s()
    if directory.wait_durable(paths, timeout_s=limit_s) is False:
        logger.warning(
            "the first checkpoint in %s has not reached the bucket within %.0f s; it is committed all the same, and "
            "cannot be loaded elsewhere until it has",
            *(directory.root, limit_s),
        )
    return time.monotonic() - began


def wait_for_records(directory: SaveDirectory, paths: Sequence[str]) -> float:
    """Wait until the bucket has `paths`, the records of what was left behind; returns the seconds waited.

    Without them the bucket would have a step that nobody loads, because those that were left behind are later. The wait
    ends after `LIMIT_S`, or halfway to the deadline of a notice, with a warning.
    """
    if not paths or not directory.is_on_mount:
        return 0.0
    began, limit_s = time.monotonic(), _limit_s(part=0.5)
    if directory.wait_durable(paths, timeout_s=limit_s) is False:
        logger.warning(
            "the record that later steps in %s were left behind has not reached the bucket within %.0f s; until it "
            "has, a start elsewhere goes on from the last of them",
            *(directory.root, limit_s),
        )
    return time.monotonic() - began


def _limit_s(part: float = 1.0) -> float:
    deadline = preemption.deadline()
    return LIMIT_S if deadline is None else max(0.0, min(LIMIT_S, (deadline - time.time()) * part))
