"""Jobs with buckets, on a controller whose S3 is a server of the tests' own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sqlite3
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import boto3
import psutil
import pytest
from botocore.config import Config

from perdure.agent.fuse import fuse_problem

KEY_ID, SECRET = "AKIATESTKEY", "secret-that-shows-nowhere"
# A machine's own choice of certificates must not disturb a server without any.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CA_BUNDLE": "/etc/ssl/none.crt"}
ENDED = ("SUCCEEDED", "FAILED", "FAILED_PRECHECKS", "FAILED_SETUP", "FAILED_CONTROLLER", "CANCELLED")

# Goes on after the highest step that the bucket has. What it was told to stop in the middle of, it says and does again.
TRAINER = """
    last=$(ls /ckpt | sed -n 's/^step-0*//p' | sort -n | tail -1)
    echo starts after ${last:-0} in $(hostname)
    for i in $(seq $((${last:-0} + 1)) STEPS); do
      f=$(printf step-%04d $i)
      head -c 700001 /dev/urandom > /ckpt/.new
      echo wrote $(sha256sum < /ckpt/.new | cut -d' ' -f1) $f
      mv /ckpt/.new /ckpt/$f
      sleep 0.05
    done
"""


@pytest.fixture(autouse=True)
def _fuse_or_skip(request: pytest.FixtureRequest) -> None:
    problem = fuse_problem() if request.node.get_closest_marker("fuse") else None
    if problem:
        pytest.skip(problem)


@dataclass
class S3Server:
    """moto's server in a process of its own, which can be ended and started again; `client` looks into it."""

    port: int
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}),
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
            )
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            Event().wait(0.05)
        raise AssertionError(f"the S3 server does not answer: see {self.log}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def new_bucket(self, **objects: bytes) -> str:
        name = self.new_name()
        self.client.create_bucket(Bucket=name)
        for key, body in objects.items():
            self.client.put_object(Bucket=name, Key=key.replace("__", "/"), Body=body)
        return name

    def buckets(self) -> set[str]:
        return {bucket["Name"] for bucket in self.client.list_buckets()["Buckets"]}

    def objects(self, bucket: str) -> dict[str, bytes]:
        found = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {one["Key"]: self.client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in found}

    def remove(self, bucket: str) -> None:
        for key in self.objects(bucket):
            self.client.delete_object(Bucket=bucket, Key=key)
        self.client.delete_bucket(Bucket=bucket)

    @staticmethod
    def new_name() -> str:
        return f"ckpt-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Jobs:
    """Launches jobs with buckets and looks into them. `folder`: where their task files are written."""

    folder: Path

    def submit(self, controller: Any, mounts: str, run: str, *, more: str = "") -> subprocess.CompletedProcess[str]:
        """Launch a spot task; the ended command."""
        task = self.folder / "task.yaml"
        parts = ["name: stored", "resources: {use_spot: true}", textwrap.dedent(more), "file_mounts:"]
        parts += [textwrap.indent(textwrap.dedent(mounts), "  "), "run: |", textwrap.indent(textwrap.dedent(run), "  ")]
        task.write_text("\n".join(parts))
        done: subprocess.CompletedProcess[str] = controller.perdure(
            "jobs", "launch", task, "--detach-run", "--yes", check=False
        )
        return done

    def launch(self, *args: Any, **named: Any) -> int:
        """As `submit`; the job."""
        done = self.submit(*args, **named)
        found = re.search(r"Job (\d+)", done.stdout + done.stderr)
        assert found, done.stdout + done.stderr
        return int(found[1])

    @staticmethod
    def trainer(steps: int, at: str = "/ckpt") -> str:
        """A `run` that writes files `step-0001` … of random content to `at`."""
        return TRAINER.replace("STEPS", str(steps)).replace("/ckpt", at)

    @staticmethod
    def written(log: str) -> dict[str, str]:
        """What the job says that it wrote: name → sha256."""
        return {line.split()[2]: line.split()[1] for line in log.splitlines() if line.startswith("wrote ")}

    @staticmethod
    def digests(objects: dict[str, bytes]) -> dict[str, str]:
        return {key: hashlib.sha256(body).hexdigest() for key, body in objects.items()}

    @staticmethod
    def until_ended(controller: Any, job: int) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            found = controller.job(job)
            return found if found["status"] in ENDED else None

        return dict(controller.until(ended, f"the end of {controller.job(job)}"))

    @staticmethod
    def until_logged(controller: Any, job: int, text: str) -> None:
        controller.until(lambda: text in controller.log(job), f"{text!r} in the log:\n{controller.log(job)}")

    @staticmethod
    def until_gone(controller: Any, job: int) -> None:
        controller.until(lambda: controller.job(job)["attempts"][-1]["state"] == "GONE", "the machine's end")

    @staticmethod
    def explained(controller: Any, job: dict[str, Any]) -> str:
        return f"{job['status']} {job['reason']} {job['message']}\n{controller.log(job['job_id'])}"

    @staticmethod
    def shown(controller: Any, job: int) -> str:
        return str(controller.perdure("jobs", "show", job, "-o", "json").stdout)

    @staticmethod
    def open_intents(controller: Any, job: int) -> int:
        with sqlite3.connect(controller.home / "perdure.db") as db:
            count = "select count(*) from intent where job_id = ? and done_at is null"
            return int(db.execute(count, [job]).fetchone()[0])

    def machine_root(self, controller: Any, job: int, rank: int = 0) -> Path:
        """The root of the running machine's file system, as this computer sees it."""
        return Path(f"/proc/{self.machine_processes(controller, job, rank)[1].pid}/root")

    @staticmethod
    def machine_processes(controller: Any, job: int, rank: int = 0) -> list[psutil.Process]:
        """The running machine's host, its first process, and all others of it."""
        node = controller.job(job)["attempts"][-1]["nodes"][rank]["instance_id"]
        for process in psutil.process_iter(["cmdline"]):
            if f"/instances/{node}" in " ".join(process.info["cmdline"] or []):
                return [process, *process.children(recursive=True)]
        raise AssertionError(f"{node} does not run")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(free_port(), tmp_path_factory.mktemp("s3") / "moto.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def controller(
    s3: S3Server, tmp_path_factory: pytest.TempPathFactory, controller_on: Callable[..., Any]
) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(f"s3: {{endpoint: '{s3.endpoint}', region: us-east-1}}\n")
    with controller_on(home, environ=CREDENTIALS) as one:
        yield one


@pytest.fixture(scope="module")
def credentials() -> dict[str, str]:
    """What the daemon's environment holds to speak with S3."""
    return CREDENTIALS
