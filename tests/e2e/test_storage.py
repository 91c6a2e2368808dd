"""Buckets, from the task file to the object and back: a real daemon, real machines, rclone over FUSE, an S3 server."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
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

from holdfast.agent.fuse import fuse_problem

ROOT = Path(__file__).resolve().parents[2]
KEY_ID, SECRET = "AKIATESTKEY", "secret-that-shows-nowhere"
# A machine's own choice of certificates must not disturb a server without any.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CA_BUNDLE": "/etc/ssl/none.crt"}
ENDED = ("SUCCEEDED", "FAILED", "FAILED_PRECHECKS", "FAILED_SETUP", "FAILED_CONTROLLER", "CANCELLED")
needs_fuse = pytest.mark.skipif(fuse_problem() is not None, reason=str(fuse_problem()))


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
        name = new_name()
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


def new_name() -> str:
    return f"ckpt-{uuid.uuid4().hex[:12]}"


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


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., Any]:
    """`submit(controller, mounts, run, **fields)` launches a spot task, and gives the ended command."""

    def launch(
        controller: Any, mounts: str, run: str, *, more: str = "", folder: Path = tmp_path
    ) -> subprocess.CompletedProcess[str]:
        task = folder / "task.yaml"
        parts = ["name: stored", "resources: {use_spot: true}", textwrap.dedent(more), "file_mounts:"]
        parts += [textwrap.indent(textwrap.dedent(mounts), "  "), "run: |", textwrap.indent(textwrap.dedent(run), "  ")]
        task.write_text("\n".join(parts))
        done: subprocess.CompletedProcess[str] = controller.holdfast(
            "jobs", "launch", task, "--detach-run", "--yes", check=False
        )
        return done

    return launch


@pytest.fixture
def launch(submit: Callable[..., Any]) -> Callable[..., int]:
    """As `submit`; gives the job."""

    def launch(*args: Any, **named: Any) -> int:
        done = submit(*args, **named)
        found = re.search(r"Job (\d+)", done.stdout + done.stderr)
        assert found, done.stdout + done.stderr
        return int(found[1])

    return launch


def until_ended(controller: Any, job: int) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        found = controller.job(job)
        return found if found["status"] in ENDED else None

    return dict(controller.until(ended, f"the end of {controller.job(job)}"))


def until_logged(controller: Any, job: int, text: str) -> None:
    controller.until(lambda: text in controller.log(job), f"{text!r} in the log:\n{controller.log(job)}")


def until_gone(controller: Any, job: int) -> None:
    controller.until(lambda: controller.job(job)["attempts"][-1]["state"] == "GONE", "the machine's end")


def explained(controller: Any, job: dict[str, Any]) -> str:
    return f"{job['status']} {job['reason']} {job['message']}\n{controller.log(job['job_id'])}"


def written(log: str) -> dict[str, str]:
    """What the job says that it wrote: name → sha256."""
    return {line.split()[2]: line.split()[1] for line in log.splitlines() if line.startswith("wrote ")}


def digests(objects: dict[str, bytes]) -> dict[str, str]:
    return {key: hashlib.sha256(body).hexdigest() for key, body in objects.items()}


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


# --- write-back mounts of S3 ------------------------------------------------------------------------


@needs_fuse
def test_a_preempted_job_goes_on_from_what_it_wrote_to_s3(controller: Any, s3: S3Server, launch: Any) -> None:
    name = new_name()
    job = launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", TRAINER.replace("STEPS", "30"))
    until_logged(controller, job, " step-0006\n")
    controller.holdfast("jobs", "preempt", job, "--notice", "10")
    ended = until_ended(controller, job)
    log = controller.log(job)
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    assert ended["recovery_count"] == 1
    first, second = ended["attempts"]
    assert first["zone"] != second["zone"]
    starts = [int(line.split()[2]) for line in log.splitlines() if "starts after" in line]
    assert starts[0] == 0
    assert starts[1] >= 6, "what was flushed at the notice is there"
    objects = s3.objects(name)
    assert set(objects) == {f"step-{i:04}" for i in range(1, 31)}
    assert digests(objects) == written(log), "bit for bit"


@needs_fuse
@pytest.mark.parametrize("existed", [False, True])
def test_a_bucket_that_shall_not_persist_ends_with_the_job_that_made_it(
    controller: Any, s3: S3Server, launch: Any, existed: bool
) -> None:
    name = s3.new_bucket(old=b"data") if existed else new_name()
    mounts = f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED, persistent: false}}"
    job = launch(controller, mounts, "echo hi > /ckpt/greeting; until [ -e ~/go ]; do sleep 0.1; ls /ckpt; done")
    until_logged(controller, job, "greeting\n")
    assert name in s3.buckets()
    (machine_root(controller, job) / "home/holdfast/go").touch()
    ended = until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    if existed:
        until_gone(controller, job)
        assert s3.objects(name) == {"old": b"data", "greeting": b"hi\n"}
    else:
        controller.until(lambda: name not in s3.buckets(), "the bucket's end")


def machine_root(controller: Any, job: int, rank: int = 0) -> Path:
    """The root of the running machine's file system, as this computer sees it."""
    return Path(f"/proc/{machine_processes(controller, job, rank)[1].pid}/root")


def machine_processes(controller: Any, job: int, rank: int = 0) -> list[psutil.Process]:
    """The running machine's host, its first process, and all others of it."""
    node = controller.job(job)["attempts"][-1]["nodes"][rank]["instance_id"]
    for process in psutil.process_iter(["cmdline"]):
        if f"/instances/{node}" in " ".join(process.info["cmdline"] or []):
            return [process, *process.children(recursive=True)]
    raise AssertionError(f"{node} does not run")


@needs_fuse
def test_every_node_writes_and_no_key_of_the_store_shows(controller: Any, s3: S3Server, launch: Any) -> None:
    name = new_name()
    run = """
        head -c 300000 /dev/urandom > /ckpt/node-$SKYPILOT_NODE_RANK
        echo wrote $(sha256sum < /ckpt/node-$SKYPILOT_NODE_RANK | cut -d' ' -f1) node-$SKYPILOT_NODE_RANK
        env
        until [ -e ~/go ]; do sleep 0.1; done
    """
    mounts = f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED, config: {{mount_cached: {{vfs_write_back: 0s}}}}}}"
    job = launch(controller, mounts, run, more="num_nodes: 2")
    controller.until(lambda: controller.log(job).count("wrote ") == 2, "both nodes' work")
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if f":{name}" in line], "rclone is looked at"
    assert not [line for line in lines if SECRET in line]
    for rank in (0, 1):
        (machine_root(controller, job, rank) / "home/holdfast/go").touch()
    ended = until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    log = controller.log(job).replace("(rank 0) ", "").replace("(rank 1) ", "")
    assert digests(s3.objects(name)) == written(log)
    with sqlite3.connect(controller.home / "holdfast.db") as db:
        kept = "\n".join(db.iterdump())
    assert SECRET not in log + kept + shown(controller, job) + (controller.home / "controller.log").read_text()


# --- reading buckets --------------------------------------------------------------------------------


@needs_fuse
def test_buckets_are_read_and_written_by_every_mode(controller: Any, s3: S3Server, launch: Any) -> None:
    bucket = s3.new_bucket(top=b"top", data__one=b"1" * 300_000, data__deep__two=b"two")
    shelf = controller.home / "local" / "buckets" / "shelf"
    (shelf / "data").mkdir(parents=True)
    (shelf / "data" / "three").write_bytes(b"three")
    mounts = f"""
        /s3-copy: s3://{bucket}/data
        /s3-file: s3://{bucket}/top
        ~/s3-home: {{source: "s3://{bucket}", mode: COPY}}
        /local-copy: local://shelf/data
        /s3: {{source: "s3://{bucket}/data", mode: MOUNT}}
        /local: {{source: "local://shelf", mode: MOUNT}}
        ~/.cache/models: {{source: "s3://{bucket}/data/deep", mode: MOUNT_CACHED}}
        relative/to/workdir: {{source: "local://shelf", mode: MOUNT}}
    """
    run = """
        set -e
        cat /s3-copy/deep/two /s3-file ~/s3-home/data/deep/two /local-copy/three /local/data/three; echo
        cmp /s3/one /s3-copy/one
        tail -c 5 /s3/one; echo
        seq 1 200000 > /s3/numbers
        seq 1 200000 > /local/numbers
        cp /s3/numbers ~/again && cmp ~/again /local/numbers
        cat ~/.cache/models/two ./relative/to/workdir/data/three; echo
        if cat /s3/none; then exit 1; fi
        echo changed > /s3-copy/deep/two
        echo done
    """
    ended = until_ended(controller, launch(controller, mounts, run))
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    log = controller.log(ended["job_id"])
    assert "\ntwotoptwothreethree\n" in log
    assert "\ntwothree\n" in log
    numbers = b"".join(b"%d\n" % i for i in range(1, 200_001))
    assert s3.objects(bucket)["data/numbers"] == numbers
    assert (shelf / "numbers").read_bytes() == numbers
    assert s3.objects(bucket)["data/deep/two"] == b"two"


@needs_fuse
def test_local_files_reach_the_machine_and_the_bucket(
    controller: Any, s3: S3Server, launch: Any, tmp_path: Path
) -> None:
    work, data, settings, name = tmp_path / "work", tmp_path / "data", tmp_path / "settings.toml", new_name()
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "big").write_bytes(os.urandom(200_000))
    (data / "empty").touch()
    settings.write_text("a = 1\n")
    work.mkdir()
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / ".gitignore").write_text("*.log\n")
    (work / "train.py").write_text("print('trained')\n")
    (work / "noise.log").write_text("not sent")
    mounts = f"""
        /from-bucket: {{name: {name}, store: s3, source: {data}, mode: MOUNT}}
        /several: {{name: {name}-2, source: [{data}, {settings}], mode: MOUNT}}
        ~/.config/tool/settings.toml: {settings}
        /opt/data: {data}
        ~/.config/x: {data}
    """
    run = """
        set -e
        echo the workdir: $(ls -A)
        python3 train.py
        cat ~/.config/tool/settings.toml
        for d in /from-bucket /opt/data ~/.config/x /several/data; do sha256sum < $d/sub/big; [ -f $d/empty ]; done
        cat /several/settings.toml
    """
    ended = until_ended(controller, launch(controller, mounts, run, more=f"workdir: {work}"))
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    log = controller.log(ended["job_id"])
    assert "the workdir: .gitignore train.py\ntrained\na = 1\n" in log
    assert log.count(hashlib.sha256((data / "sub" / "big").read_bytes()).hexdigest()) == 4
    assert log.count("a = 1\n") == 2
    assert digests(s3.objects(name)) == {
        "sub/big": hashlib.sha256((data / "sub" / "big").read_bytes()).hexdigest(),
        "empty": hashlib.sha256(b"").hexdigest(),
    }


# --- what goes wrong --------------------------------------------------------------------------------


@needs_fuse
def test_a_mount_lost_under_the_job_is_seen_and_the_task_recovers(controller: Any, s3: S3Server, launch: Any) -> None:
    name = new_name()
    run = """
        ls /ckpt
        for i in $(seq 1 600); do
          (echo $i > /ckpt/g$HOLDFAST_GENERATION-$i) 2>/dev/null && echo wrote $i || echo could not write $i
          sleep 0.05
        done
    """
    job = launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", run)
    until_logged(controller, job, "wrote 5\n")
    rclones = [p for p in machine_processes(controller, job) if p.cmdline()[1:2] == ["mount"]]
    assert len(rclones) == 1
    rclones[0].kill()
    again = controller.until(lambda: controller.job(job)["recovery_count"] == 1 and controller.job(job), "the recovery")
    controller.until(lambda: controller.job(job)["generation"] == 2, "another machine")
    controller.until(lambda: controller.log(job).count("wrote 5\n") == 2, "the second attempt's work")
    lost = [one for one in again["timeline"] if one["kind"] == "attempt.lost"]
    assert [one["reason"] for one in lost] == ["MOUNT_LOST"]
    log = controller.log(job)
    assert "holdfast: the mount at /ckpt is lost" in log
    assert "could not write" in log, "nothing pretends to be the mount"
    first = log[: log.index("could not write")]
    expected = {f"g1-{line.split()[1]}" for line in first.splitlines() if line.startswith("wrote ")}
    assert expected <= set(s3.objects(name)), "what was written before the loss was flushed"
    assert not re.search(r"could not write \d+\n(.*\n)*?wrote \d+\n", log[: log.rindex("could not write")])
    controller.holdfast("jobs", "cancel", job, "--yes", "--no-graceful")


@needs_fuse
def test_a_bucket_removed_under_the_job_fails_it_with_what_was_not_saved(
    controller: Any, s3: S3Server, launch: Any
) -> None:
    name = s3.new_bucket()
    run = """
        echo ready
        until [ -e ~/go ]; do sleep 0.1; done
        echo precious > /ckpt/model.pt; echo also > /ckpt/optimizer.pt
        seq 1 20000; echo the last line
    """
    job = launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", run)
    until_logged(controller, job, "ready\n")
    s3.remove(name)
    (machine_root(controller, job) / "home/holdfast/go").touch()
    ended = until_ended(controller, job)
    assert (ended["status"], ended["reason"]) == ("FAILED", "FLUSH_FAILED"), explained(controller, ended)
    assert "model.pt" in ended["message"]
    assert "optimizer.pt" in ended["message"]
    assert name in ended["message"]
    assert len(ended["attempts"]) == 1
    log = controller.log(job)
    assert "\n19999\n20000\nthe last line\n" in log
    until_gone(controller, job)


def test_a_bucket_that_is_not_there_fails_the_job_before_anything_is_bought(controller: Any, submit: Any) -> None:
    done = submit(controller, "/data: s3://not-there-at-all/data", "echo never")
    job = controller.client.jobs(limit=1)["jobs"][0]["job_id"]
    ended = until_ended(controller, job)
    assert (ended["status"], ended["reason"]) == ("FAILED_PRECHECKS", "STORAGE_FAILED"), done.stdout + done.stderr
    assert "there is no bucket not-there-at-all" in ended["message"]
    assert ended["attempts"] == []


def test_an_s3_that_is_down_is_waited_for(controller: Any, s3: S3Server, launch: Any) -> None:
    name, unwanted = new_name(), new_name()
    s3.stop()
    try:
        job = launch(controller, f"/data: {{name: {name}, store: s3, mode: COPY}}", "ls /data; echo ran")
        other = launch(controller, f"/data: {{name: {unwanted}, store: s3}}", "echo never")
        for waiting in (job, other):
            controller.until(lambda id=waiting: s3.endpoint in shown(controller, id), "why it waits")
            assert controller.job(waiting)["status"] == "PENDING"
        controller.holdfast("jobs", "cancel", other, "--yes")
        assert until_ended(controller, other)["status"] == "CANCELLED"
    finally:
        s3.start()
    ended = until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    assert name in s3.buckets()
    controller.until(lambda: not open_intents(controller, other), "the end of what the cancelled job wanted")
    assert unwanted not in s3.buckets()


def shown(controller: Any, job: int) -> str:
    return str(controller.holdfast("jobs", "show", job, "-o", "json").stdout)


def open_intents(controller: Any, job: int) -> int:
    with sqlite3.connect(controller.home / "holdfast.db") as db:
        count = "select count(*) from intent where job_id = ? and done_at is null"
        return int(db.execute(count, [job]).fetchone()[0])


@pytest.mark.parametrize("uri", ["gs://some-bucket/data", "r2://some-bucket"])
def test_a_store_that_can_not_be_used_is_refused_at_launch(controller: Any, submit: Any, uri: str) -> None:
    before = controller.client.jobs(limit=1)["total"]
    done = submit(controller, f"/data: {uri}", "echo never")
    assert done.returncode == 2
    assert uri in done.stderr
    assert "not supported" in done.stderr
    assert "file_mounts" in done.stderr
    assert controller.client.jobs(limit=1)["total"] == before


# --- without FUSE -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_fuse(
    s3: S3Server, tmp_path_factory: pytest.TempPathFactory, controller_on: Callable[..., Any]
) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(f"s3: {{endpoint: '{s3.endpoint}', region: us-east-1}}\n")
    with controller_on(home, environ={**CREDENTIALS, "HOLDFAST_NO_FUSE": "1"}) as one:
        yield one


def test_without_fuse_a_local_bucket_is_linked(without_fuse: Any, launch: Any) -> None:
    mounts = """
        /ckpt: {name: linked, mode: MOUNT_CACHED}
        ~/plain: {name: linked-plain, mode: MOUNT}
    """
    job = launch(without_fuse, mounts, TRAINER.replace("STEPS", "30") + "    echo hi > ~/plain/hi")
    until_logged(without_fuse, job, " step-0005\n")
    without_fuse.holdfast("jobs", "preempt", job, "--kill")
    ended = until_ended(without_fuse, job)
    assert ended["status"] == "SUCCEEDED", explained(without_fuse, ended)
    log = without_fuse.log(job)
    said = [line for line in log.splitlines() if "/ckpt is a link to" in line]
    assert len(said) == len(ended["attempts"]) == 2
    assert "HOLDFAST_NO_FUSE" in said[0]
    bucket = without_fuse.home / "local" / "buckets" / "linked"
    found = digests({path.name: path.read_bytes() for path in bucket.iterdir()})
    assert written(log).items() <= found.items()
    assert len(found) == 30
    assert (bucket.parent / "linked-plain" / "hi").read_text() == "hi\n"


def test_without_fuse_a_mount_of_s3_fails_and_says_why_and_a_copy_works(
    without_fuse: Any, s3: S3Server, launch: Any
) -> None:
    bucket = s3.new_bucket(one=b"1")
    job = launch(without_fuse, f"/ckpt: {{name: {bucket}, store: s3, mode: MOUNT_CACHED}}", "echo never")
    ended = until_ended(without_fuse, job)
    assert ended["status"] == "FAILED_PRECHECKS", explained(without_fuse, ended)
    assert "HOLDFAST_NO_FUSE" in ended["message"]
    assert "never" not in without_fuse.log(job)
    copied = until_ended(without_fuse, launch(without_fuse, f"/data: s3://{bucket}", "cat /data/one"))
    assert copied["status"] == "SUCCEEDED", explained(without_fuse, copied)


def test_check_tells_of_missing_fuse(without_fuse: Any, controller: Any) -> None:
    assert "HOLDFAST_NO_FUSE" in without_fuse.holdfast("check", "local").stdout
    assert "HOLDFAST_NO_FUSE" not in controller.holdfast("check", "local").stdout


# --- not root ---------------------------------------------------------------------------------------

NOBODY = 65534


def interpreter_for_others() -> str | None:
    """A Python of this version that any user may run."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    can_drop = os.geteuid() == 0 and shutil.which("setpriv")
    return python if can_drop and os.access(python, os.X_OK) else None


@pytest.fixture
def unprivileged(controller_on: Callable[..., Any]) -> Iterator[Any]:
    """A controller whose daemon and machines belong to a user without any rights."""
    python = interpreter_for_others()
    if python is None:
        pytest.skip("needs root, setpriv, and a Python of this version that other users can run")
    user_home = Path(tempfile.mkdtemp(prefix="holdfast-e2e-"))  # pytest's own folders are closed to other users
    os.chown(user_home, NOBODY, NOBODY)
    imports = [*(str(ROOT / root) for root in ("recovery", "checkpoint", "controller")), sysconfig.get_path("purelib")]
    environ = {**CREDENTIALS, "HOME": str(user_home), "PYTHONPATH": os.pathsep.join(imports), "USER": "nobody"}
    drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    try:
        with controller_on(user_home / "x", environ=environ, program=(*drop, python, "-m", "holdfast.cli")) as one:
            yield one
    finally:
        shutil.rmtree(user_home)


def test_without_root_a_job_runs_and_recovers(unprivileged: Any, launch: Any) -> None:
    mounts = "~/ckpt: {name: unprivileged, mode: MOUNT_CACHED}"
    job = launch(
        unprivileged,
        mounts,
        "id -u" + TRAINER.replace("/ckpt", "~/ckpt").replace("STEPS", "25"),
        folder=unprivileged.home,
    )
    until_logged(unprivileged, job, " step-0004\n")
    host = machine_processes(unprivileged, job)[0]
    assert host.uids().real == NOBODY
    unprivileged.holdfast("jobs", "preempt", job, "--notice", "5")
    ended = until_ended(unprivileged, job)
    assert ended["status"] == "SUCCEEDED", explained(unprivileged, ended)
    assert ended["recovery_count"] == 1
    bucket = unprivileged.home / "local" / "buckets" / "unprivileged"
    found = digests({path.name: path.read_bytes() for path in bucket.iterdir()})
    assert found == written(unprivileged.log(job))
    assert "ckpt is a link to" in unprivileged.log(job)
    assert "local ones are linked" in unprivileged.holdfast("check", "local").stdout
    assert len(found) == 25


# --- what became durable ----------------------------------------------------------------------------


@needs_fuse
def test_the_last_checkpoint_is_known_to_be_durable(controller: Any, s3: S3Server, launch: Any) -> None:
    name = new_name()
    run = """
        python3 - <<'END'
        import os
        from holdfast.checkpoint import save_checkpoint

        @save_checkpoint("/ckpt")
        def save(step):
            with open("/ckpt/model-%d.pt" % step, "wb") as file:
                file.write(os.urandom(1_000_000))

        for step in (10, 20):
            save(step)
        END
    """
    job = launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", run)
    ended = until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", explained(controller, ended)
    durable = [one["data"]["step"] for one in ended["timeline"] if one["kind"] == "checkpoint.durable"]
    assert durable[-1] == 20
    assert durable.count(20) == 1
    assert "model-20.pt" in s3.objects(name)
