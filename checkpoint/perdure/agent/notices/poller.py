"""The port for notice sources (`NoticeSource`), and the thread that polls one.

New notices are handed to `lifecycle.notice_handler`.

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
from perdure.agent.notices.http import MetadataError
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
        """The notices that no earlier call returned. Raises MetadataError."""
        notices = []
        interruption = self._source.interruption()
        if interruption:
            notices.append(Notice(deadline=interruption[1], action=interruption[0], source=self._source.name))
        if self._source.is_rebalance_recommended():
            notices.append(Notice(deadline=None, action=REBALANCE, source=self._source.name))
        new = [notice for notice in notices if notice not in self._known]
        self._known.update(new)
        return new

    def _run(self) -> None:
        healthy = True
        while not self._stopped.wait(self._poll_s):
            try:
                new = self.poll()
            except MetadataError as error:
                if healthy:
                    self._log(f"the metadata service does not answer, still polling: {error}")
                healthy = False
                continue
            healthy = True
            for notice in new:
                self._log(f"notice: {notice.action}, deadline {notice.deadline}")
                self._on_notice(notice)
