"""The port for notice sources (`NoticeSource`), and the thread that polls one.

New notices are handed to `lifecycle.notice_intake`.

Another cloud needs one module with a class that implements `NoticeSource`, and one line in `SOURCES`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from perdure.agent.node_spec import NoticeSettings
from perdure.agent.notices.azure_scheduled_events import ScheduledEvents
from perdure.agent.notices.ec2_imds import ImdsV2
from perdure.agent.notices.gce_metadata import GceMetadata
from perdure.agent.notices.metadata_service import MetadataError
from perdure.agent.notices.notice import REBALANCE, Notice


class NoticeSource(Protocol):
    """A cloud's metadata service, as a source of notices."""

    name: str

    def interruption(self) -> tuple[str, float] | None:
        """(action, deadline in epoch seconds), or None while there is none. May block until something changes.

        Raises MetadataError.
        """

    def is_rebalance_recommended(self) -> bool:
        """Raises MetadataError."""


SOURCES: dict[str, Callable[[str], NoticeSource]] = {
    "imds-v2": ImdsV2,
    "gce-metadata": GceMetadata,
    "azure-scheduled-events": ScheduledEvents,
}


class NoticePoller:
    """Polls a source every `poll_s` seconds, and calls `on_notice` once for each new notice."""

    def __init__(
        self,
        settings: NoticeSettings,
        endpoint: str,
        *,
        on_notice: Callable[[Notice], None],
        log: Callable[[str], None],
    ) -> None:
        """Raises ValueError for an unknown kind of source."""
        if settings.kind not in SOURCES:
            raise ValueError(f"unknown kind of notice source {settings.kind!r}; known are {', '.join(SOURCES)}")
        self._source = SOURCES[settings.kind](endpoint)
        self._poll_s = settings.poll_s
        self._on_notice = on_notice
        self._log = log
        self._known: set[Notice] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def poll(self) -> list[Notice]:
        """The notices that no earlier call returned. Raises MetadataError if there is none and a call failed.

        An interruption is returned whatever becomes of the call after it.
        """
        notices, failed = [], None
        for read in (self._read_interruption, self._read_recommendation):
            try:
                notices += read()
            except MetadataError as error:
                failed = failed or error
        new = [notice for notice in notices if notice not in self._known]
        if failed and not new:
            raise failed
        self._known.update(new)
        return new

    def _read_interruption(self) -> list[Notice]:
        interruption = self._source.interruption()
        if interruption is None:
            return []
        action, deadline = interruption
        return [Notice(deadline=deadline, action=action, source=self._source.name)]

    def _read_recommendation(self) -> list[Notice]:
        if not self._source.is_rebalance_recommended():
            return []
        return [Notice(deadline=None, action=REBALANCE, source=self._source.name)]

    def _run(self) -> None:
        healthy = True
        while not self._stopped.wait(self._poll_s):
            try:
                new = self.poll()
            except Exception as error:  # noqa: BLE001 - a node without this thread loses what it has not saved
                if healthy:
                    self._log(f"the metadata service does not answer, still polling: {error!r}")
                healthy = False
                continue
            healthy = True
            for notice in new:
                self._hand_over(notice)

    def _hand_over(self, notice: Notice) -> None:
        """One that could not be handed over is returned by the next poll again."""
        self._log(f"notice: {notice.action}, deadline {notice.deadline}")
        try:
            self._on_notice(notice)
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._log(f"the notice could not be recorded, trying again: {error!r}")
            self._known.discard(notice)
