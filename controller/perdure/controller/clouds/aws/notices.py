"""Notices from SQS, which an EventBridge rule feeds: `aws: {notice_queues: [https://sqs.….amazonaws.com/…/…]}`.

EventBridge's events are of one region. Their forms: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ (spot-instance-
termination-notices, rebalance-recommendations, monitoring-instance-state-changes). All are emitted on a best effort
basis, and SQS may deliver each more than once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, Word

HELD_S = 20  # the longest that SQS holds a call
AT_ONCE = 10  # the most that it gives, and deletes, in one call
NOTICE_S = 120.0
URL = r"https://sqs\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?P<china>\.cn)?/(?P<account>\d{12})/(?P<name>[\w-]+)"

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
STATE_CHANGE = "EC2 Instance State-change Notification"
ENDING = ("stopping", "stopped", "shutting-down", "terminated")


def arn(url: str) -> str:
    """How policies name the queue of a URL that matches `URL`."""
    found = re.fullmatch(URL, url)
    assert found is not None, url
    return f"arn:aws{'-cn' if found['china'] else ''}:sqs:{found['region']}:{found['account']}:{found['name']}"


class SqsQueue:
    """A `NoticeQueue`. `client`: of SQS, by region."""

    def __init__(self, cloud: str, url: str, client: Callable[[str], Any]) -> None:
        found = re.fullmatch(URL, url)
        assert found is not None, url
        self.cloud = cloud
        self.name = url
        self.idle_s = 0.0  # SQS has held the call
        self._region = found["region"]
        self._sqs = client

    def receive(self) -> Sequence[Message]:
        told = self._sqs(self._region).receive_message(
            QueueUrl=self.name, MaxNumberOfMessages=AT_ONCE, WaitTimeSeconds=HELD_S
        )
        return [Message(one["ReceiptHandle"], one["Body"]) for one in told.get("Messages", ())]

    def delete(self, messages: Sequence[Message]) -> None:
        for start in range(0, len(messages), AT_ONCE):
            some = messages[start : start + AT_ONCE]
            self._sqs(self._region).delete_message_batch(
                QueueUrl=self.name,
                Entries=[{"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(some)],
            )

    def read(self, message: Message) -> Heard | None:
        try:
            event = json.loads(message.body)
            if event["source"] != "aws.ec2":
                return None
            kind, detail = event["detail-type"], event["detail"]
            if kind == INTERRUPTION:
                at = datetime.fromisoformat(event["time"]).timestamp()
                return Heard(Word.NOTICE, str(detail["instance-id"]), at + NOTICE_S)
            if kind == REBALANCE:
                return Heard(Word.AT_RISK, str(detail["instance-id"]))
            if kind == STATE_CHANGE and detail["state"] in ENDING:
                return Heard(Word.ENDING, str(detail["instance-id"]))
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise MalformedMessage(f"no event of EventBridge's: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)
