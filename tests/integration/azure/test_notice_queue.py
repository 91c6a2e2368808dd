"""What is particular to Azure's notice queue. Azurite serves it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.rest import HttpRequest

from perdure.controller.clouds.azure import notices
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.base.notice_queue import (
    MachineSignal,
    MalformedMessage,
    NoticeQueue,
    QueueMessage,
    Signal,
)
from perdure.recovery.reasons import Reason
from support.fakes import azurite
from support.fakes.azure import FakeAzure
from support.fakes.azure.queues import PROCESS, Queues

pytestmark = pytest.mark.long

ROLE = Path(__file__).parents[3] / "deploy" / "iam" / "azure-controller.json"
KIND = "Microsoft.ResourceNotifications.HealthResources.{}"
MACHINE = "/subscriptions/s/resourceGroups/PERDURE-EASTUS/providers/Microsoft.Compute/virtualMachines/T1-0"


@pytest.fixture
def queues(azure: FakeAzure, tmp_path: Path) -> Iterator[Queues]:
    if why := azurite.problem():
        pytest.skip(why)
    with azure.queues(tmp_path / "queues") as queues:
        yield queues


@pytest.fixture
def queue_of(new_cloud: Callable[..., AzureCloud]) -> Callable[[str], NoticeQueue]:
    def make(url: str) -> NoticeQueue:
        (queue,) = new_cloud(interruption_queues=[url]).notice_queues()
        return queue

    return make


def received(kind: str, machine: str = MACHINE, **properties: str) -> Sequence[MachineSignal]:
    """An event in the CloudEvents schema."""
    queue = notices.StorageQueue("azure", "https://account.queue.core.windows.net/perdure", pytest.fail)
    reported = {"resourceInfo": {"properties": {"targetResourceId": machine, **properties}}}
    return queue.parse(
        QueueMessage("1", json.dumps({"type": KIND.format(kind), "specversion": "1.0", "data": reported}))
    )


def test_resource_health__every_kind_of_end_ends_the_machine() -> None:
    ends = (MachineSignal(Signal.ENDING, "t1-0"),)
    assert received("ResourceAnnotated", annotationName="VirtualMachinePreempted") == ends
    assert received("ResourceAnnotated", annotationName="VirtualMachineHostCrashed") == ends
    assert received("AvailabilityStatusChanged", availabilityState="Unavailable") == ends


def test_resource_health__of_other_resources_is_ignored() -> None:
    scale_set = MACHINE.replace("virtualMachines", "virtualMachineScaleSets")
    assert received("ResourceAnnotated", scale_set, annotationName="VirtualMachinePreempted") == ()


def test_resource_health__without_content_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="annotationName"):
        received("ResourceAnnotated", availabilityState="Unavailable")


def test_message__by_other_writers_is_decoded(queues: Queues, queue_of: Callable[[str], NoticeQueue]) -> None:
    queue = queue_of(queues.make("perdure"))
    queues.send("perdure", '{"a": "<b>"}', encoded=False)
    queues.send("perdure", "zwölf")
    assert {one.body for one in queue.receive()} == {'{"a": "<b>"}', "zwölf"}


def test_message__received_by_another_reader_is_not_deleted(
    queues: Queues, queue_of: Callable[[str], NoticeQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "HIDDEN_S", 1)
    url = queues.make("perdure")
    queues.send("perdure", "{}")
    first = queue_of(url).receive()
    second: Any = ()
    while not second:
        second = queue_of(url).receive()
    queue_of(url).delete(first)
    assert queues.count("perdure") == 1
    queue_of(url).delete(second)
    assert queues.count("perdure") == 0


def test_missing_queue__is_named(queues: Queues, queue_of: Callable[[str], NoticeQueue]) -> None:
    queue = queue_of(queues.make("perdure").replace("perdure", "another"))
    with pytest.raises(Exception, match="QueueNotFound") as caught:
        queue.receive()
    assert queue.name in queue.classify(caught.value).message


def test_denied_access__names_the_fix(azure: FakeAzure, queues: Queues, queue_of: Callable[[str], NoticeQueue]) -> None:
    queue = queue_of(queues.make("perdure"))
    azure.faults.deny = "AuthorizationPermissionMismatch"
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        queue.receive()
    fault = queue.classify(caught.value)
    assert fault.reason is Reason.BAD_CREDENTIALS
    assert "deploy/iam/azure-controller.json" in fault.message


def test_iam_role__allows_exactly_the_calls_made(
    azure: FakeAzure, queues: Queues, queue_of: Callable[[str], NoticeQueue]
) -> None:
    queue = queue_of(queues.make("perdure"))
    queues.send("perdure", "{}")
    queue.delete(queue.receive())
    assert azure.calls == {PROCESS: 2}
    role = json.loads(ROLE.read_text())
    named = {name for name in role["Actions"] + role["DataActions"] if "/queueServices/" in name}
    assert named == {PROCESS}


def test_receipt__with_url_characters_is_sent_whole() -> None:
    """Azure's receipts contain such characters; azurite's do not."""
    asked: list[HttpRequest] = []

    class Client:
        def send_request(self, request: HttpRequest) -> SimpleNamespace:
            asked.append(request)
            return SimpleNamespace(status_code=204, headers={})

    made: Any = Client
    notices.StorageQueue("azure", "https://account.queue.core.windows.net/q", made).delete(
        [QueueMessage("id a+/b==", "")]
    )
    (sent,) = asked
    assert parse_qs(urlsplit(sent.url).query) == {"popreceipt": ["a+/b=="]}
    assert urlsplit(sent.url).path == "/q/messages/id"
