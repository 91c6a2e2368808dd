"""A real daemon tells real receivers what happens to real jobs, whatever dies in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.runtime.failpoints import NOTIFICATION_FAILPOINTS
from support.fakes.webhook_receiver import WebhookReceiver
from support.helpers.controllers import running_controller
from support.helpers.ports import unused_port
from support.helpers.service_manager import ServiceManager
from support.helpers.timing import scaled, wait_until

SECRET = "whsec_" + "a2tr" * 11
TASK = {"name": "told", "run": "sleep 1", "resources": {"infra": "local", "use_spot": True}}


def config(url: str, *more: str) -> str:
    lines = [
        "local: {zones: {local-a: {region: local, capacity: 8}}}",
        "notify:",
        "  allow_private_addresses: true",
        "  channels:",
        f"    ops: {{webhook: '{url}', secret: {SECRET}}}",
        "    nowhere: {webhook: 'http://127.0.0.1:9/'}",
        "  rules: [{when: [job.*, task.ended], to: ops}]",
    ]
    return "\n".join([*lines, *more]) + "\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as one:
        yield one


def test_life_of_a_job__reaches_webhook_and_callback(home: Path, tmp_path: Path, receiver: WebhookReceiver) -> None:
    (home / "config.yaml").write_text(config(receiver.url))
    seen = tmp_path / "callbacks"
    task = {
        **TASK,
        "envs": {"COLOUR": "blue"},
        "secrets": {"KEY": "not for callbacks"},
        "event_callback": f'echo "$JOB_STATUS $TASK_NAME $COLOUR ${{KEY:-no secret}} $TASK_ID" >> {seen}',
    }
    with running_controller(home) as controller:
        (tmp_path / "task.yaml").write_text(json.dumps(task))
        controller.perdure("jobs", "launch", "-y", tmp_path / "task.yaml")
        expected = ["job.starting", "job.started", "task.ended", "job.succeeded"]

        def told() -> list[str] | None:
            events = [event["type"] for message in list(receiver.received) for event in message.events]
            return events if len(events) >= len(expected) else None

        assert controller.until(told, "every event") == expected
        statuses = ["SUBMITTED", "STARTING", "STARTED", "SUCCEEDED"]
        lines = [f"{status} told blue no secret 0" for status in statuses]
        controller.until(lambda: seen.exists() and seen.read_text().splitlines() == lines, "the callbacks")
        listed = json.loads(controller.perdure("notify", "list", "-o", "json").stdout)
        ours = [row for row in listed if row["channel"] == "ops"]
        assert [row["event"] for row in reversed(ours)] == expected
        assert {(row["outcome"], row["detail"]) for row in ours} == {("sent", "200")}
        assert "job.succeeded" in controller.perdure("notify", "list", "--job", "1").stdout
        # A test message, and one to a receiver that is not there.
        assert "Delivered a test message to ops" in controller.perdure("notify", "test", "ops").stdout
        assert receiver.received[-1].body["type"] == "test"
        failed = controller.perdure("notify", "test", "nowhere", check=False)
        assert failed.returncode != 0
        assert "was not delivered: " in failed.stderr
        assert "Error: " not in failed.stderr.removeprefix("Error: "), "no name of a class"
        assert "config.yaml was changed" not in failed.stderr
        unknown = controller.perdure("notify", "test", "opps", check=False)
        assert "channels: nowhere, ops" in unknown.stderr
        with open(home / "config.yaml", "a") as file:
            file.write("# edited\n")
        edited = controller.perdure("notify", "test", "ops")
        assert "config.yaml was changed after the controller started" in edited.stderr
        assert controller.errors() == []


def test_task__with_an_unknown_channel_is_rejected(home: Path, tmp_path: Path, receiver: WebhookReceiver) -> None:
    (home / "config.yaml").write_text(config(receiver.url))
    (tmp_path / "task.yaml").write_text(json.dumps({**TASK, "notify": "opps"}))
    with running_controller(home) as controller:
        done = controller.perdure("jobs", "launch", "-y", tmp_path / "task.yaml", check=False)
        assert done.returncode != 0
        assert "there is no notification channel 'opps'" in done.stderr
        assert "nowhere, ops" in done.stderr


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == "notification.sent" else pytest.mark.long)
        for point in NOTIFICATION_FAILPOINTS
    ],
)
def test_kill__loses_no_event_and_invents_none(home: Path, receiver: WebhookReceiver, point: str) -> None:
    """The daemon is killed twice at the failpoint, and the receiver fails at first. Each event arrives, and repeats
    have the same id."""
    receiver.script = lambda _: 200 if receiver.received else 500
    (home / "config.yaml").write_text(config(receiver.url))
    keeper = ServiceManager(home, [point, point], environ={})

    def rows() -> list[dict[str, Any]]:
        return list(keeper.ask(lambda client: client._call("GET", "/notifications", query={"limit": 1000})))

    try:
        job = keeper.ask(lambda client: client.submit("told", [TASK], user="me", key="k"))["job_id"]
        keeper.until(lambda: keeper.is_done, "both deaths")
        keeper.until(lambda: "job.succeeded" in [row["event"] for row in rows()], "the end of the job")
        keeper.until(lambda: all(row["outcome"] == "sent" for row in rows()), "every delivery")
        kinds = ("job.starting", "job.started", "task.ended", "job.succeeded")
        assert Counter((row["job_id"], row["event"]) for row in rows()) == Counter((job, kind) for kind in kinds)
        ids = [row["event_id"] for row in reversed(rows())]
        assert set(receiver.event_ids) == set(ids)
        last = {event_id: number for number, event_id in enumerate(receiver.event_ids)}
        assert sorted(ids, key=last.__getitem__) == ids, "each job's events arrive in their order"
        assert len(receiver.event_ids) > len(ids), "deliveries were repeated"
    finally:
        keeper.stop()
        for path in home.glob("local/instances/*/pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)


def test_mail__arrives_in_a_thread_of_the_job(home: Path, tmp_path: Path) -> None:
    controller_module = pytest.importorskip("aiosmtpd.controller")
    mails = []

    class Handler:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
            mails.append((envelope.rcpt_tos, envelope.content.decode()))
            return "250 OK"

    port = unused_port()
    server = controller_module.Controller(Handler(), hostname="127.0.0.1", port=port, ready_timeout=scaled(5))
    server.start()
    try:
        smtp = f"  smtp: {{host: 127.0.0.1, port: {port}, from: perdure@example.org, security: none}}"
        text = config("http://127.0.0.1:9/").replace("    ops: ", "    mail: {email: [a@example.org]}\n    ops: ")
        text = text.replace("to: ops", "to: mail")
        (home / "config.yaml").write_text(f"{text}{smtp}\n")
        (tmp_path / "task.yaml").write_text(json.dumps(TASK))
        with running_controller(home) as controller:
            controller.perdure("jobs", "launch", "-y", tmp_path / "task.yaml")
            wait_until(lambda: any("succeeded" in mail for _, mail in mails), "the last mail", 60)
        assert {tuple(addresses) for addresses, _ in mails} == {("a@example.org",)}
        first = mails[0][1]
        assert "Auto-Submitted: auto-generated" in first
        assert "Job 1 (told) starting" in first  # in the subject, or on a busy machine in the digest of several events
        is_digest = [("X-Perdure-Event: digest_" in mail) for _, mail in mails]
        threads = [[line for line in mail.splitlines() if line.startswith("References:")] for _, mail in mails]
        assert [len(lines) for lines in threads] == [0 if one else 1 for one in is_digest], "a digest has no thread"
        assert len({line for lines in threads for line in lines}) <= 1, "all about the one job"
    finally:
        server.stop()
