"""What becomes of machines, from Pub/Sub, which a sink of Cloud Logging feeds with Compute Engine's audit logs:
`gcp: {notice_queues: [projects/…/subscriptions/…]}`.

An entry is written when something has happened, so that none is a notice with a deadline: machines end, or are gone.
Their form: cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry, and …/compute/docs/logging/audit-logging for
what is logged. Pub/Sub may deliver each more than once.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.gcp import faults, reading
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, Word

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

PUBLIC_URL = "https://pubsub.googleapis.com/v1/"
CONNECT_TIMEOUT_S = 5.0
# Pub/Sub holds a call for as long as it likes. What it hands to nobody comes again.
HELD_S = 30.0
IDLE_S = 1.0  # it may also answer at once that there is nothing
AT_ONCE = 100

# Of Google's own (system events), and of anybody's who may (`v1.compute.instances.delete`).
ENDING = frozenset(
    f"compute.instances.{what}"
    for what in ("preempted", "hostError", "terminateOnHostMaintenance", "guestTerminate", "automaticRestart")
) | frozenset(f"compute.instances.{what}" for what in ("delete", "stop", "suspend"))
_METHOD = re.compile(r"(?:[a-z]+\d*\.)?(compute\.\w+\.\w+)")
_MACHINE = re.compile(r"projects/[^/]+/zones/([^/]+)/instances/([^/]+)")


class PubSubQueue:
    """A `NoticeQueue`. `name`: a subscription's, or its URL at another endpoint of Pub/Sub's. `session`: makes one
    that knows who calls; raises what the search for credentials raises."""

    def __init__(self, cloud: str, name: str, session: Callable[[], AuthorizedSession]) -> None:
        self.cloud = cloud
        self.name = name
        self.idle_s = IDLE_S
        self._url = name if "://" in name else f"{PUBLIC_URL}{name}"
        self._new_session = session
        self._session: AuthorizedSession | None = None

    def receive(self) -> Sequence[Message]:
        from requests.exceptions import ReadTimeout

        try:
            told = self._call("pull", {"maxMessages": AT_ONCE})
        except ReadTimeout:
            return ()
        return [_message(one) for one in told.get("receivedMessages", ())]

    def delete(self, messages: Sequence[Message]) -> None:
        for start in range(0, len(messages), AT_ONCE):
            some = messages[start : start + AT_ONCE]
            self._call("acknowledge", {"ackIds": [one.receipt for one in some]})

    def read(self, message: Message) -> Heard | None:
        try:
            entry = json.loads(message.body)
            if not entry["logName"] or "protoPayload" not in entry:
                return None  # a log of another kind
            told = entry["protoPayload"]
            method = _METHOD.fullmatch(told["methodName"])
            if method is None or method[1] not in ENDING:
                return None
            machine = _MACHINE.fullmatch(told["resourceName"])
            if machine is None:
                raise ValueError(f"{told['resourceName']} is no machine")
            return Heard(Word.ENDING, reading.id_of(machine[1], machine[2]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MalformedMessage(f"no entry of Cloud Logging's: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    def _call(self, what: str, body: dict[str, Any]) -> Any:
        from google.api_core.exceptions import from_http_response

        if self._session is None:
            self._session = self._new_session()
        response = self._session.post(f"{self._url}:{what}", json=body, timeout=(CONNECT_TIMEOUT_S, HELD_S))
        if response.status_code >= 400:
            raise from_http_response(response)  # type: ignore[no-untyped-call]
        return response.json()


def _message(received: Mapping[str, Any]) -> Message:
    """What is no text is none of Cloud Logging's, and is shown as well as it can be."""
    data = base64.b64decode(received["message"].get("data", ""))
    return Message(received["ackId"], data.decode(errors="replace"))
