"""One bench per kind of queue: the queue, and how its cloud fills it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fake_ec2 import FakeEc2
from holdfast.controller.clock import SystemClock
from holdfast.controller.clouds.aws.cloud import AwsCloud
from holdfast.controller.clouds.aws.settings import AwsSettings
from holdfast.controller.clouds.queues import NoticeQueue, Word

URL = "https://sqs.us-west-2.amazonaws.com/123456789012/holdfast"
KINDS = {
    Word.NOTICE: ("EC2 Spot Instance Interruption Warning", {"instance-action": "terminate"}),
    Word.AT_RISK: ("EC2 Instance Rebalance Recommendation", {}),
    Word.ENDING: ("EC2 Instance State-change Notification", {"state": "shutting-down"}),
}


@dataclass(frozen=True)
class QueueBench:
    """`words`: those that the cloud has. `say(word, id, at)`: as it says them. `write`: as anybody may.

    `left`: how many messages are not deleted. `refuse(n)`: throttle the next `n` calls. `others`: what the cloud says
    that does not count.
    """

    queue: NoticeQueue
    words: tuple[Word, ...]
    notice_s: float
    say: Callable[[Word, str, float], None]
    write: Callable[[str], None]
    left: Callable[[], int]
    refuse: Callable[[int], None]
    others: tuple[str, ...]


def event(kind: str, detail: dict[str, str], at: float) -> str:
    """As EventBridge writes it."""
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"version": "0", "id": "1", "detail-type": kind, "source": "aws.ec2", "account": "123456789012"}
    return json.dumps({**told, "time": time, "region": "us-west-2", "resources": [], "detail": detail})


@pytest.fixture
def sqs_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueBench]:
    with FakeEc2() as ec2:
        for name, value in ec2.environ.items():
            monkeypatch.setenv(name, value)
        sqs = ec2.sqs("us-west-2")
        sqs.create_queue(QueueName="holdfast", Attributes={"VisibilityTimeout": "0"})
        settings = AwsSettings(regions=ec2.regions, endpoint_url=ec2.url, notice_queues=(URL,))
        (queue,) = AwsCloud(tmp_path, settings, SystemClock()).notice_queues()

        def write(text: str) -> None:
            sqs.send_message(QueueUrl=URL, MessageBody=text)

        def say(word: Word, id: str, at: float) -> None:
            kind, detail = KINDS[word]
            write(event(kind, {"instance-id": id, **detail}, at))

        def left() -> int:
            names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            told = sqs.get_queue_attributes(QueueUrl=URL, AttributeNames=names)["Attributes"]
            return sum(map(int, told.values()))

        def refuse(calls: int) -> None:
            ec2.faults.throttle = calls

        running = event(KINDS[Word.ENDING][0], {"instance-id": "i-1", "state": "running"}, 1.0)
        other = json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": {}})
        yield QueueBench(queue, tuple(KINDS), 120.0, say, write, left, refuse, (running, other))


@pytest.fixture(params=["sqs"])
def bench(request: pytest.FixtureRequest) -> QueueBench:
    made: QueueBench = request.getfixturevalue(f"{request.param}_bench")
    return made
