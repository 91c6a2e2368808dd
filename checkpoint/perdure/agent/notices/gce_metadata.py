"""Compute Engine's metadata server: preemptions, and host maintenance that ends the machine. `poller` polls it.

https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
"""

from __future__ import annotations

import time

from perdure.agent.notices.metadata_service import MetadataError, MetadataService

# The server holds a call this long, and answers at once when something changes.
HOLD_S = 20.0
GRACE_S = 5.0
# The time from the announcement of a preemption to the end, which Google gives if it can.
NOTICE_S = 30.0
PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
MAINTENANCE_PATH = "/computeMetadata/v1/instance/maintenance-event"
TERMINATES_MACHINE = "TERMINATE_ON_HOST_MAINTENANCE"


class GceMetadata:
    """A `NoticeSource`. `interruption` returns when something changes, or after `hold_s`."""

    name = "gce-metadata"

    def __init__(self, endpoint: str, *, hold_s: float = HOLD_S, grace_s: float = GRACE_S) -> None:
        self._service = MetadataService(endpoint, hold_s + grace_s)
        self._hold_s = hold_s
        self._etag = "0"  # matches no answer, so the first call returns at once
        self._deadline: float | None = None

    def interruption(self) -> tuple[str, float] | None:
        """The server sends no deadline: it counts from the first call that returned the preemption."""
        if self._deadline is None:
            if self._wait_for_change(PREEMPTED_PATH) != "TRUE":
                return None
            self._deadline = time.time() + NOTICE_S
        return "terminate", self._deadline

    def is_rebalance_recommended(self) -> bool:
        """Host maintenance that ends the machine is announced up to an hour ahead: time to move."""
        if self._deadline is not None:
            return False  # the machine is ending; no further call may delay that notice
        return self._get(MAINTENANCE_PATH) == TERMINATES_MACHINE

    def _wait_for_change(self, path: str) -> str:
        query = f"wait_for_change=true&timeout_sec={self._hold_s:g}&last_etag={self._etag}"
        status, etag, body = self._call(f"{path}?{query}")
        if status != 200 or body not in ("TRUE", "FALSE"):
            self._etag = "0"
            raise MetadataError(f"{path} answered {status}, {body[:80]!r}")
        self._etag = etag or "0"
        return body

    def _get(self, path: str) -> str:
        status, _, body = self._call(path)
        if status != 200:
            raise MetadataError(f"{path} answered {status}")
        return body

    def _call(self, path: str) -> tuple[int, str, str]:
        """Status, ETag and text."""
        response, body = self._service.call("GET", path, {"Metadata-Flavor": "Google"})
        return response.status, response.getheader("ETag") or "", body.decode("latin-1").strip()
