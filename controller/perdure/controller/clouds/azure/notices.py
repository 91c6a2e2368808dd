"""Events of machines from a storage queue, which Event Grid feeds with the events of Resource Health:
`azure: {interruption_queues: [https://ACCOUNT.queue.core.windows.net/QUEUE]}`.

An event is written after the fact, so none is a notice: machines are ending, or gone. Format: learn.microsoft.com/
azure/event-grid/event-schema-health-resources; annotations: …/azure/service-health/resource-health-vm-annotation.
Event Grid may deliver each event more than once, and encodes it as base64.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal
from perdure.controller.clouds.base.protocol import Fault

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.rest import HttpResponse

IDLE_S = 5.0  # there is no long polling, and each call is billed
HIDDEN_S = 60  # a received message is not delivered again for this long
BATCH_SIZE = 32  # the service's maximum
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
# Resource ids are case-insensitive.
_MACHINE = re.compile(
    "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Compute/virtualMachines/([^/]+)", re.IGNORECASE
)


class StorageQueue:
    """A `NoticeQueue`. `client`: makes a client of the service with the controller's credentials."""

    def __init__(self, cloud: str, url: str, client: Callable[[], PipelineClient[Any, Any]]) -> None:
        self.cloud = cloud
        self.name = url
        self.idle_s = IDLE_S
        self._client = client

    def receive(self) -> Sequence[QueueMessage]:
        from azure.core.pipeline.policies import ContentDecodePolicy

        response = self._call("GET", f"messages?numofmessages={BATCH_SIZE}&visibilitytimeout={HIDDEN_S}")
        document = ContentDecodePolicy.deserialize_from_text(response.text("utf-8-sig"), "application/xml")
        return [_message(one) for one in document.iter("QueueMessage")]

    def delete(self, messages: Sequence[QueueMessage]) -> None:
        for message in messages:
            id, receipt = message.receipt.split()
            self._call("DELETE", f"messages/{id}?popreceipt={quote(receipt, safe='')}", missing=True)

    def parse(self, message: QueueMessage) -> Sequence[MachineSignal]:
        try:
            event = json.loads(message.body)
            kind = (
                event["type"] if "type" in event else event["eventType"]
            )  # the schema of CloudEvents, and Event Grid's own
            if kind not in (STATUS_CHANGED, ANNOTATED):
                return ()
            properties = event["data"]["resourceInfo"]["properties"]
            machine = _MACHINE.fullmatch(properties["targetResourceId"])
            if machine is None:
                return ()  # scale sets have events, too
            ends = (
                properties["availabilityState"] == "Unavailable"
                if kind == STATUS_CHANGED
                else properties["annotationName"] in ENDING
            )
            return (MachineSignal(Signal.ENDING, machine[1].lower()),) if ends else ()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MalformedMessage(f"not an event of Event Grid: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    def _call(self, method: str, what: str, *, missing: bool = False) -> HttpResponse:
        """`missing`: whether the message may be gone, or delivered to another reader since."""
        from azure.core.exceptions import HttpResponseError
        from azure.core.rest import HttpRequest

        request = HttpRequest(method, f"{self.name}/{what}", headers={"x-ms-version": API_VERSION})
        response: HttpResponse = self._client().send_request(request)
        code = response.headers.get("x-ms-error-code")
        if response.status_code < 400 or (missing and code in ("MessageNotFound", "PopReceiptMismatch")):
            return response
        raise HttpResponseError(f"{code or response.status_code} of queue {self.name}", response=response)


def _message(element: Any) -> QueueMessage:
    """The receipt consists of the id of the message and that of this delivery."""
    return QueueMessage(
        f"{element.findtext('MessageId')} {element.findtext('PopReceipt')}", _plain(element.findtext("MessageText", ""))
    )


def _plain(text: str) -> str:
    """The decoded text. Text that is not base64 does not come from Event Grid and is returned as it is."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return text
