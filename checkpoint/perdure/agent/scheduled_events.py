"""Azure's scheduled events: evictions of spot machines, and maintenance that ends what runs.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events

Events are never acknowledged (`StartRequests`): that only asks Azure to begin sooner. A machine that has saved what it
had is deleted by the controller, which is the quickest end there is, and until then its time is worth having.
"""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from typing import Any

from perdure.agent.metadata import MetadataError, MetadataService

# The first call of a machine's life switches the service on, and may take up to two minutes: it is made again.
TIMEOUT_S = 5.0
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

# What ends the workload: an agent is not started again after a boot. A freeze of some seconds ends nothing.
ACTIONS = {"Preempt": "terminate", "Terminate": "terminate", "Reboot": "reboot", "Redeploy": "redeploy"}


class ScheduledEvents:
    """A `NoticeSource`."""

    name = "azure-scheduled-events"

    def __init__(self, endpoint: str) -> None:
        self._service = MetadataService(endpoint, TIMEOUT_S)
        self._machine: str | None = None
        self._deadlines: dict[str, float] = {}

    def interruption(self) -> tuple[str, float] | None:
        """The soonest event that ends this machine's workload. One that is withdrawn is not told any more."""
        if self._machine is None:
            self._machine = self._get(NAME_PATH).decode("latin-1").strip()
        try:
            told = json.loads(self._get(EVENTS_PATH))["Events"]
            ours = [event for event in told if event["EventType"] in ACTIONS and self._is_ours(event)]
            found = [(self._deadline(event), ACTIONS[event["EventType"]]) for event in ours]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetadataError(f"scheduled events that can not be read: {error!r}") from None
        if not found:
            return None
        deadline, action = min(found)
        return action, deadline

    def is_rebalance_recommended(self) -> bool:
        return False

    def _is_ours(self, event: dict[str, Any]) -> bool:
        """Machines that Azure counts as one group are told of each other's."""
        return any(name.lower() == str(self._machine).lower() for name in event["Resources"])

    def _deadline(self, event: dict[str, Any]) -> float:
        """Epoch seconds. An event that has begun tells no time any more: it stays what it was, or is now."""
        id, text = event["EventId"], event["NotBefore"]
        if text:
            self._deadlines[id] = parsedate_to_datetime(text).timestamp()
        return self._deadlines.setdefault(id, time.time())

    def _get(self, path: str) -> bytes:
        answer, body = self._service.call("GET", path, {"Metadata": "true"})
        if answer.status != 200:
            raise MetadataError(f"{path.partition('?')[0]} answered {answer.status}")
        return body
