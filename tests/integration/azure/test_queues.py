"""What Azure's queues do besides what all queues do. Azurite has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.rest import HttpRequest

import azurite
from fake_azure import FakeAzure
from fake_azure.queues import PROCESS, Queues
from perdure.controller.clouds.azure import notices
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, NoticeQueue, Word
from perdure.recovery.reasons import Reason

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
        (queue,) = new_cloud(notice_queues=[url]).notice_queues()
        return queue

    return make


def heard(kind: str, machine: str = MACHINE, **properties: str) -> Heard | None:
    """Of an event in the schema of CloudEvents."""
    queue = notices.StorageQueue("azure", "https://account.queue.core.windows.net/perdure", pytest.fail)
    told = {"resourceInfo": {"properties": {"targetResourceId": machine, **properties}}}
    return queue.read(Message("1", json.dumps({"type": KIND.format(kind), "specversion": "1.0", "data": told})))


def test_whatever_ends_a_machine_ends_it() -> None:
    ends = Heard(Word.ENDING, "t1-0")
    assert heard("ResourceAnnotated", annotationName="VirtualMachinePreempted") == ends
    assert heard("ResourceAnnotated", annotationName="VirtualMachineHostCrashed") == ends
    assert heard("AvailabilityStatusChanged", availabilityState="Unavailable") == ends


def test_the_health_of_other_things_is_nothing() -> None:
    scale_set = MACHINE.replace("virtualMachines", "virtualMachineScaleSets")
    assert heard("ResourceAnnotated", scale_set, annotationName="VirtualMachinePreempted") is None


def test_health_without_a_word_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="annotationName"):
        heard("ResourceAnnotated", availabilityState="Unavailable")


def test_what_others_wrote_is_read_as_they_wrote_it(queues: Queues, queue_of: Callable[[str], NoticeQueue]) -> None:
    queue = queue_of(queues.make("perdure"))
    queues.send("perdure", '{"a": "<b>"}', encoded=False)
    queues.send("perdure", "zwölf")
    assert {one.body for one in queue.receive()} == {'{"a": "<b>"}', "zwölf"}


def test_what_was_given_to_another_meanwhile_is_left_to_them(
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
    assert queues.left("perdure") == 1
    queue_of(url).delete(second)
    assert queues.left("perdure") == 0


def test_a_queue_that_is_not_there_is_named(queues: Queues, queue_of: Callable[[str], NoticeQueue]) -> None:
    queue = queue_of(queues.make("perdure").replace("perdure", "another"))
    with pytest.raises(Exception, match="QueueNotFound") as caught:
        queue.receive()
    assert queue.name in queue.classify(caught.value).message


def test_whoever_is_not_let_in_is_told_what_to_do(
    azure: FakeAzure, queues: Queues, queue_of: Callable[[str], NoticeQueue]
) -> None:
    queue = queue_of(queues.make("perdure"))
    azure.faults.deny = "AuthorizationPermissionMismatch"
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        queue.receive()
    fault = queue.classify(caught.value)
    assert fault.reason is Reason.BAD_CREDENTIALS
    assert "deploy/iam/azure-controller.json" in fault.message


def test_the_role_allows_what_is_called_and_nothing_more(
    azure: FakeAzure, queues: Queues, queue_of: Callable[[str], NoticeQueue]
) -> None:
    queue = queue_of(queues.make("perdure"))
    queues.send("perdure", "{}")
    queue.delete(queue.receive())
    assert azure.calls == {PROCESS: 2}
    role = json.loads(ROLE.read_text())
    named = {name for name in role["Actions"] + role["DataActions"] if "/queueServices/" in name}
    assert named == {PROCESS}


def test_a_receipt_with_signs_of_urls_is_told_whole() -> None:
    """Azure's hold such; azurite's do not."""
    asked: list[HttpRequest] = []

    class Client:
        def send_request(self, request: HttpRequest) -> SimpleNamespace:
            asked.append(request)
            return SimpleNamespace(status_code=204, headers={})

    made: Any = Client
    notices.StorageQueue("azure", "https://account.queue.core.windows.net/q", made).delete([Message("id a+/b==", "")])
    (sent,) = asked
    assert parse_qs(urlsplit(sent.url).query) == {"popreceipt": ["a+/b=="]}
    assert urlsplit(sent.url).path == "/q/messages/id"
