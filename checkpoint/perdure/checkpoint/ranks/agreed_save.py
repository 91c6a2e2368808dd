"""Whether to save now and whether to stop, decided by all processes together.

What only one process can know (a notice, the time, the state of its upload) is exchanged about twice a second, whatever
the steps are (`exchange_pace`).
"""

from __future__ import annotations

from enum import IntEnum

from perdure.checkpoint import preemption
from perdure.checkpoint.durability.pending_upload import PendingUpload
from perdure.checkpoint.ranks.exchange_pace import ExchangePace
from perdure.checkpoint.ranks.group import Group
from perdure.checkpoint.save.final_save import FinalSave
from perdure.checkpoint.save.interval import SaveInterval

_MAX_CALLS = 10  # of `preempted` after one of `is_due`, until what was agreed on is too old


class _Request(IntEnum):
    """What one process asks for."""

    NONE = 0
    WAIT = 1  # a save now would only wait for the upload of the last one
    SAVE = 2  # the interval is over
    SAVE_NOW = 3  # it cannot wait for an upload


class AgreedSave:
    """The decisions of one process, which are those of all. All processes call the same methods in the same order."""

    def __init__(
        self, prefix: str, group: Group, interval: SaveInterval, final_save: FinalSave, upload: PendingUpload
    ) -> None:
        self._prefix, self._group = prefix, group
        self._interval, self._final_save, self._upload = interval, final_save, upload
        self._pace = ExchangePace()
        self._calls_since = _MAX_CALLS + 1
        self._is_noticed = False  # whether any process had received a notice at the last exchange

    def is_due(self, step: int) -> bool:
        """Whether all save after `step`."""
        self._calls_since = 0
        if self._group.world_size == 1:
            return self._request(step) >= _Request.SAVE
        is_certain = self._interval.is_last(step) or (
            self._interval.every_steps is not None and self._interval.is_due(step)
        )
        if not self._pace.is_due():
            return is_certain
        mine = [int(self._request(step)), preemption.is_noticed(), self._pace.call_s()]
        requests, noticed, call_s = zip(*self._group.all_gather(f"due-{self._prefix}-{step}", mine))
        self._pace.conclude(call_s)
        self._is_noticed = any(noticed)
        if is_certain or _Request.SAVE_NOW in requests:
            return True
        return _Request.SAVE in requests and _Request.WAIT not in requests

    def preempted(self) -> bool:
        """Whether one of the processes was asked to stop, as all of them knew when they last called `is_due`.

        If that was long ago, or never, it is what this process knows.
        """
        own = preemption.preempted()
        self._calls_since += 1
        return own if self._group.world_size == 1 or self._calls_since > _MAX_CALLS else self._is_noticed

    def _request(self, step: int) -> _Request:
        if preemption.is_noticed():
            return _Request.SAVE_NOW if self._final_save.can_commit() else _Request.NONE
        is_due = self._interval.is_due(step)
        if not is_due and self._group.world_size == 1:
            return _Request.NONE
        if self._interval.is_last(step):
            return _Request.SAVE_NOW
        if self._is_uploading() and self._interval.waits_for_uploads:
            return _Request.WAIT
        return _Request.SAVE if is_due else _Request.NONE

    def _is_uploading(self) -> bool:
        was_pending, is_pending = self._upload.was_pending, self._upload.is_pending()
        if was_pending and not is_pending:
            self._interval.record_upload()
        return is_pending
