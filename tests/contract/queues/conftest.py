"""One bench per kind of queue: the queue, and how its cloud fills it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from contract.queues.queue_bench import QueueBench
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure import notices as azure_notices
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.notice_queue import Signal
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache
from perdure.controller.runtime.clock import SystemClock
from support.fakes import azurite
from support.fakes.azure import FakeAzure
from support.fakes.azure.queues import Queues
from support.fakes.ec2 import FakeEc2
from support.fakes.gce import FakeGce

URL = "https://sqs.us-west-2.amazonaws.com/123456789012/perdure"
KINDS = {
    Signal.NOTICE: ("EC2 Spot Instance Interruption Warning", {"instance-action": "terminate"}),
    Signal.AT_RISK: ("EC2 Instance Rebalance Recommendation", {}),
    Signal.ENDING: ("EC2 Instance State-change Notification", {"state": "shutting-down"}),
}

NUMBERS = count(1)


def event(kind: str, detail: dict[str, str], at: float) -> str:
    """An event as EventBridge writes it."""
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reported = {"version": "0", "id": "1", "detail-type": kind, "source": "aws.ec2", "account": "123456789012"}
    return json.dumps({**reported, "time": time, "region": "us-west-2", "resources": [], "detail": detail})


@pytest.fixture
def sqs_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueBench]:
    with FakeEc2() as ec2:
        for name, value in ec2.environ.items():
            monkeypatch.setenv(name, value)
        sqs = ec2.sqs("us-west-2")
        sqs.create_queue(QueueName="perdure", Attributes={"VisibilityTimeout": "0"})
        settings = AwsSettings(regions=ec2.regions, endpoint_url=ec2.url, interruption_queues=(URL,))
        (queue,) = AwsCloud(InMemoryOfferCache(SystemClock()), settings, SystemClock()).notice_queues()

        def write(text: str) -> None:
            sqs.send_message(QueueUrl=URL, MessageBody=text)

        def send(word: Signal, id: str, at: float) -> None:
            kind, detail = KINDS[word]
            write(event(kind, {"instance-id": id, **detail}, at))

        def num_left() -> int:
            names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            reported = sqs.get_queue_attributes(QueueUrl=URL, AttributeNames=names)["Attributes"]
            return sum(map(int, reported.values()))

        def throttle(calls: int) -> None:
            ec2.faults.throttle = calls

        running = event(KINDS[Signal.ENDING][0], {"instance-id": "i-1", "state": "running"}, 1.0)
        other = json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": {}})
        yield QueueBench(queue, tuple(KINDS), 120.0, "i-{}".format, send, write, num_left, throttle, (running, other))


def entry(method: str, machine: str, at: float) -> dict[str, Any]:
    """An entry as Cloud Logging writes it. `machine`: zone/name."""
    zone, _, name = machine.partition("/")
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
            "status": {"message": "Instance was preempted."},
            "authenticationInfo": {"principalEmail": "system@google.com"},
            "serviceName": "compute.googleapis.com",
            "methodName": method,
            "resourceName": f"projects/acme/zones/{zone}/instances/{name}",
            "request": {"@type": f"type.googleapis.com/{method}"},
        },
        "insertId": "1",
        "resource": {"type": "gce_instance", "labels": {"instance_id": "18", "project_id": "acme", "zone": zone}},
        "timestamp": time,
        "severity": "INFO",
        "logName": "projects/acme/logs/cloudaudit.googleapis.com%2Fsystem_event",
        "operation": {"id": "systemevent-1", "producer": method, "first": True, "last": True},
        "receiveTimestamp": time,
    }


@pytest.fixture
def pubsub_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueBench]:
    with FakeGce() as gce:
        for name, value in gce.environ.items():
            monkeypatch.setenv(name, value)
        url = gce.subscription("perdure")
        subscription = url.partition("/v1/")[2]
        settings = GcpSettings.from_mapping({"endpoint_url": gce.url, "interruption_queues": [url]})
        (queue,) = GcpCloud(InMemoryOfferCache(SystemClock()), settings, SystemClock()).notice_queues()

        def write(text: str) -> None:
            gce.pubsub.send(subscription, text.encode())

        def send(word: Signal, id: str, at: float) -> None:
            assert word is Signal.ENDING
            write(json.dumps(entry("compute.instances.preempted", id, at)))

        def num_left() -> int:
            return gce.pubsub.count(subscription)

        def throttle(calls: int) -> None:
            gce.faults.throttle = calls

        migrated = entry("compute.instances.migrateOnHostMaintenance", "us-central1-a/m-0", 1.0)
        started = entry("v1.compute.instances.start", "us-central1-a/m-0", 1.0)
        other = {"logName": "projects/acme/logs/syslog", "textPayload": "hello"}
        others = tuple(map(json.dumps, (migrated, started, other)))
        write("")  # creates the queue
        queue.delete(queue.receive())
        yield QueueBench(
            queue, (Signal.ENDING,), 0.0, "us-central1-a/m-{}".format, send, write, num_left, throttle, others
        )


def health(kind: str, machine: str, **properties: str) -> str:
    """An event as Event Grid writes it, in its own schema. `kind`: AvailabilityStatusChanged or ResourceAnnotated."""
    machine = f"/subscriptions/s/resourceGroups/perdure-eastus/providers/Microsoft.Compute/virtualMachines/{machine}"
    reported = {
        "targetResourceId": machine,
        "targetResourceType": "Microsoft.Compute/virtualMachines",
        "occurredTime": "2026-11-22T19:20:37.9245071Z",
        **properties,
    }
    resource = {
        "id": f"{machine}/providers/Microsoft.ResourceHealth/x/1",
        "name": "1",
        "type": "x",
        "properties": reported,
    }
    return json.dumps(
        {
            "id": "1fb6fa94-d965-4306-abe0-4810f0774e97",
            "topic": "/subscriptions/s",
            "subject": machine,
            "data": {"resourceInfo": resource, "operationalInfo": {}, "apiVersion": "2023-12-01"},
            "eventType": f"Microsoft.ResourceNotifications.HealthResources.{kind}",
            "dataVersion": "1",
            "metadataVersion": "1",
            "eventTime": "2026-11-22T19:20:37.9245071Z",
        }
    )


@pytest.fixture(scope="package")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeAzure, Queues]]:
    """Azure with a storage account; each test has a queue."""
    if why := azurite.problem():
        pytest.skip(why)
    with FakeAzure() as azure, azure.queues(tmp_path_factory.mktemp("azurite") / "queues") as queues:
        yield azure, queues


@pytest.fixture
def storage_bench(azure: tuple[FakeAzure, Queues], monkeypatch: pytest.MonkeyPatch) -> QueueBench:
    fake, queues = azure
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(azure_notices, "HIDDEN_S", 1)  # the minimum
    name = f"perdure-{next(NUMBERS)}"
    settings = AzureSettings.from_mapping({**fake.section, "interruption_queues": [queues.make(name)]})
    (queue,) = AzureCloud(InMemoryOfferCache(SystemClock()), settings, SystemClock()).notice_queues()

    def write(text: str) -> None:
        queues.send(name, text)

    def send(word: Signal, id: str, at: float) -> None:
        assert word is Signal.ENDING
        write(health("ResourceAnnotated", id, annotationName="VirtualMachinePreempted", context="Platform Initiated"))

    def num_left() -> int:
        return int(queues.count(name))

    def throttle(calls: int) -> None:
        fake.faults.throttle = calls

    started = health("ResourceAnnotated", "m-0", annotationName="VirtualMachineStartInitiatedByControlPlane")
    is_back = health("AvailabilityStatusChanged", "m-0", availabilityState="Available")
    other = json.dumps({"eventType": "Microsoft.Storage.BlobCreated", "data": {}})
    others = (started, is_back, other)
    return QueueBench(queue, (Signal.ENDING,), 0.0, "m-{}".format, send, write, num_left, throttle, others)


@pytest.fixture(params=["sqs", "pubsub", "storage"])
def bench(request: pytest.FixtureRequest) -> QueueBench:
    made: QueueBench = request.getfixturevalue(f"{request.param}_bench")
    return made
