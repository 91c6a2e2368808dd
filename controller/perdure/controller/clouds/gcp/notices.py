"""Events of machines from Pub/Sub, which a sink of Cloud Logging feeds with Compute Engine's audit logs:
`gcp: {interruption_queues: [projects/…/subscriptions/…]}`.

An entry is written after the fact, so none is a notice with a deadline: machines are ending, or gone.
Format: cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry; the logged events: …/compute/docs/logging/
audit-logging. Pub/Sub may deliver each entry more than once.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.machines import parse

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

PUBLIC_URL = "https://pubsub.googleapis.com/v1/"
CONNECT_TIMEOUT_S = 5.0
# Pub/Sub chooses how long it holds a call. It redelivers messages whose response was lost.
LONG_POLL_S = 30.0
IDLE_S = 1.0  # it may also return an empty response immediately
BATCH_SIZE = 100

# Google's own operations (system events) and those of authorized users (`v1.compute.instances.delete`).
ENDING = frozenset(
    f"compute.instances.{what}"
    for what in ("preempted", "hostError", "terminateOnHostMaintenance", "guestTerminate", "automaticRestart")
) | frozenset(f"compute.instances.{what}" for what in ("delete", "stop", "suspend"))
_METHOD = re.compile(r"(?:[a-z]+\d*\.)?(compute\.\w+\.\w+)")
_MACHINE = re.compile(r"projects/[^/]+/zones/([^/]+)/instances/([^/]+)")


class PubSubQueue:
    """A `NoticeQueue`. `name`: of a subscription, or its URL at another endpoint of Pub/Sub. `session`: makes an
    authorized session; raises what the search for credentials raises."""

    def __init__(self, cloud: str, name: str, session: Callable[[], AuthorizedSession]) -> None:
        self.cloud = cloud
        self.name = name
        self.idle_s = IDLE_S
        self._url = name if "://" in name else f"{PUBLIC_URL}{name}"
        self._new_session = session
        self._session: AuthorizedSession | None = None

    def receive(self) -> Sequence[QueueMessage]:
        from requests.exceptions import ReadTimeout

        try:
            response = self._call("pull", {"maxMessages": BATCH_SIZE})
        except ReadTimeout:
            return ()
        return [_message(one) for one in response.get("receivedMessages", ())]

    def delete(self, messages: Sequence[QueueMessage]) -> None:
        for start in range(0, len(messages), BATCH_SIZE):
            batch = messages[start : start + BATCH_SIZE]
            self._call("acknowledge", {"ackIds": [one.receipt for one in batch]})

    def parse(self, message: QueueMessage) -> Sequence[MachineSignal]:
        try:
            entry = json.loads(message.body)
            if not entry["logName"] or "protoPayload" not in entry:
                return ()  # a log of another kind
            payload = entry["protoPayload"]
            method = _METHOD.fullmatch(payload["methodName"])
            if method is None or method[1] not in ENDING:
                return ()
            machine = _MACHINE.fullmatch(payload["resourceName"])
            if machine is None:
                raise ValueError(f"{payload['resourceName']} is not a machine")
            return (MachineSignal(Signal.ENDING, parse.id_of(machine[1], machine[2])),)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MalformedMessage(f"not an entry of Cloud Logging: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    def _call(self, what: str, body: dict[str, Any]) -> Any:
        from google.api_core.exceptions import from_http_response

        if self._session is None:
            self._session = self._new_session()
        response = self._session.post(f"{self._url}:{what}", json=body, timeout=(CONNECT_TIMEOUT_S, LONG_POLL_S))
        if response.status_code >= 400:
            raise from_http_response(response)  # type: ignore[no-untyped-call]
        return response.json()


def _message(received: Mapping[str, Any]) -> QueueMessage:
    """A body that is not text does not come from Cloud Logging; invalid characters are replaced."""
    data = base64.b64decode(received["message"].get("data", ""))
    return QueueMessage(received["ackId"], data.decode(errors="replace"))
