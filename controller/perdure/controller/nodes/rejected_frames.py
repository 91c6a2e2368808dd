"""Counts the invalid frames of nodes, and logs them: one line per attempt and minute, however many there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records.agent_connections import Place

log = structlog.get_logger(__name__)

_LOG_INTERVAL_S = 60.0
# More attempts than this are not remembered one by one: memory stays bounded, whatever the nodes send.
_MAX_REMEMBERED = 1000


@dataclass
class _Offender:
    logged_at: float  # monotonic
    unlogged: int = 0  # since then


class RejectedFrames:
    """On the event loop only."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offenders: dict[AttemptKey, _Offender] = {}
        #: Invalid frames since this process started.
        self.total = 0

    def count(self, place: Place, why: str) -> None:
        """Count a frame of the node at `place` that was rejected."""
        self.total += 1
        key, rank = place
        now = self._monotonic()
        offender = self._offenders.get(key)
        if offender is not None and now - offender.logged_at < _LOG_INTERVAL_S:
            offender.unlogged += 1
            return
        job_id, task, generation = key
        repeated = offender.unlogged if offender else 0
        log.warning(
            "agent.invalid_frame", job=job_id, task=task, generation=generation, rank=rank, why=why, repeated=repeated
        )
        if len(self._offenders) >= _MAX_REMEMBERED:
            self._offenders.clear()
        self._offenders[key] = _Offender(now)
