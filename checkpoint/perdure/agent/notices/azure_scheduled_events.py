"""Azure's scheduled events: evictions of spot machines, and maintenance that ends the workload. `poller` polls it.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events

Events are never acknowledged (`StartRequests`): that would only ask Azure to begin sooner. Once the machine has saved
its work, the controller deletes it, and until then its time is useful.
"""

from __future__ import annotations

import json
import time
from typing import Any

from perdure.agent.notices.metadata_service import MetadataError, MetadataService, epoch_seconds

# The first call on a new machine enables the service and may take up to two minutes; it times out and is repeated.
TIMEOUT_S = 5.0
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

MIN_NOTICE_S = 30.0

# The events that end the workload: no agent is started again after a boot. A "Freeze" of some seconds ends nothing.
ACTIONS = {"Preempt": "terminate", "Terminate": "terminate", "Reboot": "reboot", "Redeploy": "redeploy"}


class ScheduledEvents:
    """A `NoticeSource`."""

    name = "azure-scheduled-events"

    def __init__(self, endpoint: str) -> None:
        self._service = MetadataService(endpoint, TIMEOUT_S)
        self._machine: str | None = None
        self._deadlines: dict[str, float] = {}

    def interruption(self) -> tuple[str, float] | None:
        """The soonest event that ends this machine's workload. A withdrawn event is not returned any more."""
        if self._machine is None:
            self._machine = self._get(NAME_PATH).decode("latin-1").strip()
        try:
            events = list(json.loads(self._get(EVENTS_PATH))["Events"])
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataError(f"unreadable scheduled events: {error!r}") from None
        deadlines, unreadable = [], None
        for event in events:
            try:
                if event["EventType"] in ACTIONS and self._is_ours(event):
                    deadlines.append((self._deadline(event), ACTIONS[event["EventType"]]))
            except (KeyError, TypeError, AttributeError) as error:  # it must not hide the others
                unreadable = error
        if unreadable and not deadlines:
            raise MetadataError(f"an unreadable scheduled event: {unreadable!r}")
        if not deadlines:
            return None
        deadline, action = min(deadlines)
        return action, deadline

    def is_rebalance_recommended(self) -> bool:
        return False

    def _is_ours(self, event: dict[str, Any]) -> bool:
        """Azure also returns the events of other machines in the same group."""
        return any(name.lower() == str(self._machine).lower() for name in event["Resources"])

    def _deadline(self, event: dict[str, Any]) -> float:
        """Epoch seconds. An event that has begun has no time any more: its earlier time counts, or else now.

        If the time is unreadable, the event has the minimum notice.
        """
        id, text = event["EventId"], event["NotBefore"]
        deadline = epoch_seconds(text)
        if deadline is not None:
            self._deadlines[id] = deadline
        return self._deadlines.setdefault(id, time.time() + (MIN_NOTICE_S if text else 0.0))

    def _get(self, path: str) -> bytes:
        response, body = self._service.call("GET", path, {"Metadata": "true"})
        if response.status != 200:
            raise MetadataError(f"{path.partition('?')[0]} answered {response.status}")
        return body
