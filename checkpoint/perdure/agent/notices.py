"""Interruption notices: a small seam per cloud (`NoticeSource`), and the thread that asks it.

A further cloud is one module with a class that has `poll`, and one line in `SOURCES`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from perdure.agent.gce_metadata import GceMetadata
from perdure.agent.imds import ImdsV2
from perdure.agent.metadata import MetadataError
from perdure.agent.scheduled_events import ScheduledEvents
from perdure.agent.spec import NoticeSettings

REBALANCE = "rebalance"


@dataclass(frozen=True)
class Notice:
    """A cloud's word that this node will be taken.

    `action` is the cloud's ("terminate", "stop", "hibernate", "reboot", "redeploy"), or "rebalance": the risk has
    grown, nothing is decided. `deadline` is in epoch seconds; None for a rebalance.
    """

    deadline: float | None
    action: str
    source: str

    @property
    def is_final(self) -> bool:
        """Whether the node will surely be taken."""
        return self.action != REBALANCE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class NoticeSource(Protocol):
    """A cloud's metadata service, as far as notices go."""

    name: str

    def interruption(self) -> tuple[str, float] | None:
        """(action, deadline in epoch seconds), or None while there is none. May wait until there may be one.

        Raises MetadataError.
        """

    def is_rebalance_recommended(self) -> bool:
        """Raises MetadataError."""


SOURCES: dict[str, Callable[[str], NoticeSource]] = {
    "imds-v2": ImdsV2,
    "gce-metadata": GceMetadata,
    "azure-scheduled-events": ScheduledEvents,
}


class NoticeWatch:
    """Asks a source every `poll_s`, and calls `found` once for each notice that is new."""

    def __init__(
        self, settings: NoticeSettings, endpoint: str, *, found: Callable[[Notice], None], log: Callable[[str], None]
    ) -> None:
        """Raises ValueError when the kind of source is unknown."""
        if settings.kind not in SOURCES:
            raise ValueError(f"unknown kind of notice source {settings.kind!r}; this agent knows {', '.join(SOURCES)}")
        self._source = SOURCES[settings.kind](endpoint)
        self._poll_s = settings.poll_s
        self._found = found
        self._log = log
        self._known: set[Notice] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def poll(self) -> list[Notice]:
        """The notices that were not there at the last call. Raises MetadataError."""
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
                    self._log(f"the metadata service does not answer, asking on: {error}")
                healthy = False
                continue
            healthy = True
            for notice in new:
                self._log(f"notice: {notice.action}, deadline {notice.deadline}")
                self._found(notice)
