"""Notices from SQS, which an EventBridge rule feeds: `aws: {interruption_queues: [https://sqs.….amazonaws.com/…/…]}`.

EventBridge's events cover one region. Formats: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ (spot-instance-
termination-notices, rebalance-recommendations, monitoring-instance-state-changes). Events are emitted on a best-effort
basis, and SQS may deliver each more than once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
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
STATE_CHANGE = "EC2 Instance State-change Notification"
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

    def parse(self, message: QueueMessage) -> MachineSignal | None:
        try:
            event = json.loads(message.body)
            if event["source"] != "aws.ec2":
                return None
            kind, detail = event["detail-type"], event["detail"]
            if kind == INTERRUPTION:
                at = datetime.fromisoformat(event["time"]).timestamp()
                return MachineSignal(Signal.NOTICE, str(detail["instance-id"]), at + NOTICE_S)
            if kind == REBALANCE:
                return MachineSignal(Signal.AT_RISK, str(detail["instance-id"]))
            if kind == STATE_CHANGE and detail["state"] in ENDING:
                return MachineSignal(Signal.ENDING, str(detail["instance-id"]))
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise MalformedMessage(f"not an event of EventBridge: {type(error).__name__}: {error}") from error

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)
