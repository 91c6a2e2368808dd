"""Notices from SQS, which an EventBridge rule feeds: `aws: {interruption_queues: [https://sqs.….amazonaws.com/…/…]}`.

EventBridge's events cover one region. Formats: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ (spot-instance-
termination-notices, rebalance-recommendations, monitoring-instance-state-changes, capacity-reservations) and
/health/latest/ug/aws-health-events-eventbridge-schema. Events are emitted on a best-effort basis, and SQS may deliver
each more than once. An SNS topic between the rule and the queue wraps them, unless it delivers raw messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal
from perdure.controller.clouds.base.protocol import Fault

LONG_POLL_S = 20  # SQS's maximum
BATCH_SIZE = 10  # SQS's maximum, for receiving and deleting
NOTICE_S = 120.0
URL = r"https://sqs\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?P<china>\.cn)?/(?P<account>\d{12})/(?P<name>[\w-]+)"

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
RESERVATION_END = "EC2 Capacity Reservation Instance Interruption Warning"
STATE_CHANGE = "EC2 Instance State-change Notification"
HEALTH = "AWS Health Event"
_INSTANCE = re.compile(r"(?:arn:[^/]*:instance/)?(i-[0-9a-f]+)")
ENDING = ("stopping", "stopped", "shutting-down", "terminated")


def arn(url: str) -> str:
    """The ARN of the queue of a URL that matches `URL`."""
    match = re.fullmatch(URL, url)
    assert match is not None, url
    return f"arn:aws{'-cn' if match['china'] else ''}:sqs:{match['region']}:{match['account']}:{match['name']}"


class SqsQueue:
    """A `NoticeQueue`. `client`: region → a client of SQS."""

    def __init__(self, cloud: str, url: str, client: Callable[[str], Any]) -> None:
        match = re.fullmatch(URL, url)
        assert match is not None, url
        self.cloud = cloud
        self.name = url
        self.idle_s = 0.0  # `receive` polls for LONG_POLL_S
        self._region = match["region"]
        self._sqs = client

    def receive(self) -> Sequence[QueueMessage]:
        response = self._sqs(self._region).receive_message(
            QueueUrl=self.name, MaxNumberOfMessages=BATCH_SIZE, WaitTimeSeconds=LONG_POLL_S
        )
        return [QueueMessage(message["ReceiptHandle"], message["Body"]) for message in response.get("Messages", ())]

    def delete(self, messages: Sequence[QueueMessage]) -> None:
        for start in range(0, len(messages), BATCH_SIZE):
            batch = messages[start : start + BATCH_SIZE]
            self._sqs(self._region).delete_message_batch(
                QueueUrl=self.name,
                Entries=[{"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(batch)],
            )

    def parse(self, message: QueueMessage) -> Sequence[MachineSignal]:
        try:
            event = json.loads(message.body)
            if event.get("Type") == "Notification" and "Message" in event:
                event = json.loads(event["Message"])
            source, kind = event["source"], event.get("detail-type") or event.get("detail_type")
            if source == "aws.health" and kind == HEALTH:
                return _health_signals(event)
            if source != "aws.ec2":
                return ()
            if kind is None:
                raise KeyError("detail-type")
            return _ec2_signals(kind, event)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise MalformedMessage(f"not an event of EventBridge: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)


def _ec2_signals(kind: str, event: Mapping[str, Any]) -> Sequence[MachineSignal]:
    detail = event["detail"]
    if kind == INTERRUPTION:
        at = _epoch_seconds(event.get("time"))
        return (MachineSignal(Signal.NOTICE, str(detail["instance-id"]), None if at is None else at + NOTICE_S),)
    if kind == RESERVATION_END:
        until = _epoch_seconds(detail.get("instance-termination-time"))
        return (MachineSignal(Signal.NOTICE, str(detail["instance-id"]), until),)
    if kind == REBALANCE:
        return (MachineSignal(Signal.AT_RISK, str(detail["instance-id"])),)
    if kind == STATE_CHANGE and detail["state"] in ENDING:
        return (MachineSignal(Signal.ENDING, str(detail["instance-id"])),)
    return ()


def _health_signals(event: Mapping[str, Any]) -> Sequence[MachineSignal]:
    """Scheduled changes of instances. They are announced days ahead; the machine itself reads the time."""
    detail = event["detail"]
    if detail["service"] != "EC2" or detail["eventTypeCategory"] != "scheduledChange":
        return ()
    named = [entity["entityValue"] for entity in detail.get("affectedEntities") or ()] + list(
        event.get("resources") or ()
    )
    ids = [match[1] for name in named if (match := _INSTANCE.fullmatch(str(name)))]
    return tuple(MachineSignal(Signal.AT_RISK, id) for id in dict.fromkeys(ids))


def _epoch_seconds(text: object) -> float | None:
    """None for what is no time: an event without its time is one still."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = parse(str(text))
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            continue
    return None
