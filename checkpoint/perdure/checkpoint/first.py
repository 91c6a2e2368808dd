"""The first checkpoint of a series: it is committed when the bucket has its files.

A manifest is small and may reach the bucket long before its files. Were the machine lost in between, the bucket would
hold nothing but a step that can not be loaded, and every start from then on would have to refuse. From the second
manifest on there is an older one to go back to, and nobody waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from perdure.checkpoint import durability, manifest, notice

logger = logging.getLogger("perdure.checkpoint")

LIMIT_S = 60.0


def upload(root: str, prefix: str, paths: Sequence[str]) -> float:
    """Wait until the bucket has `paths`, if `prefix` has no manifest yet; returns for how many seconds.

    A bucket that does not answer is not waited for beyond `LIMIT_S`, nor beyond the end of the machine.
    """
    if durability.mount_of(root) is None or any(entry.prefix == prefix for entry in manifest.entries(root)):
        return 0.0
    began, until = time.monotonic(), notice.deadline()
    limit_s = LIMIT_S if until is None else max(0.0, min(LIMIT_S, until - time.time()))
    if durability.wait_durable(paths, timeout_s=limit_s) is False:
        logger.warning(
            "the first checkpoint in %s has not reached the bucket within %.0f s; it is committed all the same, and "
            "can not be loaded elsewhere until it has",
            *(root, limit_s),
        )
    return time.monotonic() - began
