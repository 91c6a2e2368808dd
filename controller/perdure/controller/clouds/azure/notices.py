"""What becomes of machines, from a storage queue, which Event Grid feeds with the events of Resource Health:
`azure: {notice_queues: [https://ACCOUNT.queue.core.windows.net/QUEUE]}`.

They tell of what has happened, so that none is a notice: machines end, or are gone. Their form: learn.microsoft.com/
azure/event-grid/event-schema-health-resources; annotations: …/azure/service-health/resource-health-vm-annotation.
Event Grid may deliver each more than once, and puts it in as base64.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, Word

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.rest import HttpResponse

IDLE_S = 5.0  # the service holds no call, and each costs
HIDDEN_S = 60  # for how long a message that was given is not given again
AT_ONCE = 32  # the most that it gives
API_VERSION = "2020-10-02"

STATUS_CHANGED = "Microsoft.ResourceNotifications.HealthResources.AvailabilityStatusChanged"
ANNOTATED = "Microsoft.ResourceNotifications.HealthResources.ResourceAnnotated"
ENDING = frozenset(
    f"VirtualMachine{what}"
    for what in (
        *("Preempted", "DeallocationInitiated", "StopInitiatedByControlPlane", "StoppedInternally", "Crashed"),
        *("HostCrashed", "HostRebootedForRepair", "MigrationInitiatedForRepair", "StorageOffline"),
    )
)
# Resource ids keep no case.
_MACHINE = re.compile(
    "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Compute/virtualMachines/([^/]+)", re.IGNORECASE
)


class StorageQueue:
    """A `NoticeQueue`. `client`: of the service's, with the controller's credentials."""

    def __init__(self, cloud: str, url: str, client: Callable[[], PipelineClient[Any, Any]]) -> None:
        self.cloud = cloud
        self.name = url
        self.idle_s = IDLE_S
        self._client = client

    def receive(self) -> Sequence[Message]:
        from azure.core.pipeline.policies import ContentDecodePolicy

        response = self._call("GET", f"messages?numofmessages={AT_ONCE}&visibilitytimeout={HIDDEN_S}")
        told = ContentDecodePolicy.deserialize_from_text(response.text("utf-8-sig"), "application/xml")
        return [_message(one) for one in told.iter("QueueMessage")]

    def delete(self, messages: Sequence[Message]) -> None:
        for message in messages:
            id, receipt = message.receipt.split()
            self._call("DELETE", f"messages/{id}?popreceipt={quote(receipt, safe='')}", missing=True)

    def read(self, message: Message) -> Heard | None:
        try:
            event = json.loads(message.body)
            kind = event["type"] if "type" in event else event["eventType"]  # CloudEvents' schema, Event Grid's own
            if kind not in (STATUS_CHANGED, ANNOTATED):
                return None
            told = event["data"]["resourceInfo"]["properties"]
            machine = _MACHINE.fullmatch(told["targetResourceId"])
            if machine is None:
                return None  # health is told of scale sets, too
            ends = (
                told["availabilityState"] == "Unavailable"
                if kind == STATUS_CHANGED
                else told["annotationName"] in ENDING
            )
            return Heard(Word.ENDING, machine[1].lower()) if ends else None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MalformedMessage(f"no event of Event Grid's: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    def _call(self, method: str, what: str, *, missing: bool = False) -> HttpResponse:
        """`missing`: whether it may be about what is not there, or is somebody else's by now."""
        from azure.core.exceptions import HttpResponseError
        from azure.core.rest import HttpRequest

        request = HttpRequest(method, f"{self.name}/{what}", headers={"x-ms-version": API_VERSION})
        response: HttpResponse = self._client().send_request(request)
        code = response.headers.get("x-ms-error-code")
        if response.status_code < 400 or (missing and code in ("MessageNotFound", "PopReceiptMismatch")):
            return response
        raise HttpResponseError(f"{code or response.status_code} of queue {self.name}", response=response)


def _message(told: Any) -> Message:
    """The receipt is the message's id and that of this delivery."""
    return Message(
        f"{told.findtext('MessageId')} {told.findtext('PopReceipt')}", _plain(told.findtext("MessageText", ""))
    )


def _plain(text: str) -> str:
    """What others than Event Grid wrote is as they wrote it."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return text
