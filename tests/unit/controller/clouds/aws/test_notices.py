"""Events in shapes that others use: EventBridge's documentation, node-termination-handler, Karpenter, SNS."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.controller.clouds.aws.notices import SqsQueue
from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal

ID = "i-0b662ef9931388ba0"
ARN = f"arn:aws:ec2:us-east-1:123456789012:instance/{ID}"
AT = 1505722920.0  # 2017-09-18T08:22:00Z
QUEUE = SqsQueue("aws", "https://sqs.us-east-1.amazonaws.com/123456789012/perdure", lambda _region: None)
COMMON = {
    "version": "0",
    "id": "1e5527d7-bb36-4607-3370-4164db56a40e",
    "account": "123456789012",
    "region": "us-east-1",
}


def event(kind: str, detail: dict[str, Any], source: str = "aws.ec2", **more: Any) -> dict[str, Any]:
    return {**COMMON, "detail-type": kind, "source": source, "detail": detail, "resources": [ARN], **more}


def interruption(**more: Any) -> dict[str, Any]:
    detail = {"instance-id": ID, "instance-action": "terminate"}
    return event("EC2 Spot Instance Interruption Warning", detail, **more)


def parse(body: object) -> list[MachineSignal]:
    return list(QUEUE.parse(QueueMessage("receipt", json.dumps(body))))


@pytest.mark.parametrize(
    "time", ["2017-09-18T08:22:00Z", "2017-09-18T08:22:00.000000000Z", "2017-09-18T10:22:00+02:00"]
)
def test_interruption__ends_two_minutes_after_its_time(time: str) -> None:
    (signal,) = parse(interruption(time=time))
    assert (signal.signal, signal.instance_id, signal.deadline) == (Signal.NOTICE, ID, AT + 120)


@pytest.mark.parametrize("more", [{}, {"time": ""}, {"time": None}, {"time": "soon"}])
def test_interruption__without_a_readable_time_is_a_notice_still(more: dict[str, Any]) -> None:
    assert parse(interruption(**more)) == [MachineSignal(Signal.NOTICE, ID, None)]


@pytest.mark.parametrize("name", ["detail-type", "detail_type"])  # the second one is in EC2's documentation
def test_capacity_reservation__ends_at_its_time(name: str) -> None:
    detail = {
        "instance-id": ID,
        "instance-action": "terminate",
        "instance-termination-time": "2017-09-18T08:22:00Z",
        "availability-zone-id": "use1-az1",
        "instance-lifecycle": "capacity-block",
    }
    warning = event("EC2 Capacity Reservation Instance Interruption Warning", detail, time="2017-09-18T08:00:00Z")
    warning[name] = warning.pop("detail-type")
    assert parse(warning) == [MachineSignal(Signal.NOTICE, ID, AT)]


def health(**detail: Any) -> dict[str, Any]:
    usual = {
        "eventArn": "arn:aws:health:us-east-1::event/EC2/AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED/1",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "startTime": "Wed, 26 Jun 2019 15:00:00 GMT",
        "affectedEntities": [{"entityValue": ID, "tags": {}}, {"entityValue": "i-0123456789abcdef0"}],
    }
    return event("AWS Health Event", {**usual, **detail}, source="aws.health", resources=[ID])


def test_health_event__puts_every_machine_that_it_names_at_risk() -> None:
    ids = [ID, "i-0123456789abcdef0"]
    assert parse(health()) == [MachineSignal(Signal.AT_RISK, id) for id in ids]
    assert parse(health(affectedEntities=None)) == [MachineSignal(Signal.AT_RISK, ID)]


@pytest.mark.parametrize("detail", [{"service": "ECS"}, {"eventTypeCategory": "issue"}])
def test_health_event__of_another_kind_means_nothing(detail: dict[str, str]) -> None:
    assert parse(health(**detail)) == []


def test_sns__is_unwrapped() -> None:
    envelope = {
        "Type": "Notification",
        "MessageId": "1",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:notices",
        "Message": json.dumps(interruption(time="2017-09-18T08:22:00Z")),
        "Timestamp": "2017-09-18T08:22:01.000Z",
        "SignatureVersion": "1",
    }
    assert parse(envelope) == [MachineSignal(Signal.NOTICE, ID, AT + 120)]
    with pytest.raises(MalformedMessage):
        parse({**envelope, "Message": "hello"})


def test_event__of_another_service_means_nothing() -> None:
    assert (
        parse(event("EC2 Instance-terminate Lifecycle Action", {"EC2InstanceId": ID}, source="aws.autoscaling")) == []
    )
