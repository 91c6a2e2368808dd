"""The daemon is killed at random moments of a launch, a cancel and a preemption, and restarted on its state.

The outcome is checked on the cloud's side: the machines, and how each of them ended. `tests/crash` kills at named
points instead.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perdure.controller.runtime.config.errors import CannotStart
from perdure.controller.runtime.process import single_instance_lock
from perdure.sdk.connection.client import ApiError, Client, ConnectionLost
from perdure.sdk.connection.discovery import running
from perdure.sdk.connection.endpoint import Endpoint
from support.helpers import daemon_forkserver
from support.helpers.timing import pause, scaled, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

Value = TypeVar("Value")

TIMES = 20
MAX_DELAY_S = 0.4  # the daemon dies so soon after it was asked
TIMEOUT_S = 120.0
DISK = "32m"
COUNT = "for i in $(seq {n}); do echo line $i; sleep 0.1; done"


class Plug:
    """A daemon on `home` that can be killed and restarted.

    `pulled`: how often it was killed. Call `survived` at the end: it adds this number to the summary of all tests.
    """

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.pulled = 0
        self.survived: Callable[[], None] = lambda: None
        self._chance = random.Random(seed)
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        self.begin()

    def begin(self) -> None:
        self.daemon = daemon_forkserver.start(self.home, environ=self._environ, stderr=self.home / "stderr")
        self.until(self._answers, "the daemon's start")

    def _answers(self) -> bool:
        assert self.daemon.poll() is None, (self.home / "stderr").read_text()
        current = running(self.home)
        return current is not None and current.pid == self.daemon.pid

    @property
    def instances(self) -> Path:
        """The folders of the machines."""
        return (self.home if (self.home / "local").exists() else self.home.parent) / "local" / "instances"

    @property
    def client(self) -> Client:
        """A client that does not start a daemon."""
        current = running(self.home)
        if current is None:
            raise ConnectionLost("no daemon runs")
        return Client(Endpoint(current.url, current.token))

    def pull(self, ask: Callable[[Client], object]) -> None:
        """Send a request, kill the daemon a moment later, and start another one."""
        client = self.client

        def try_to_ask() -> None:
            with contextlib.suppress(ConnectionLost, ApiError):
                ask(client)

        asking = threading.Thread(target=try_to_ask)
        asking.start()
        pause(self._chance.uniform(0, MAX_DELAY_S))
        self.daemon.kill()
        self.daemon.wait(scaled(TIMEOUT_S))
        asking.join()
        self.pulled += 1
        self.begin()

    def until(self, condition: Callable[[], Value | None], what: str) -> Value:
        return wait_until(condition, what, TIMEOUT_S)

    def job(self, job: int) -> dict[str, Any]:
        return dict(self.client.job(job))

    def submit(self, client: Client, key: str, run: str) -> int:
        task = {"name": key, "run": run, "resources": {"use_spot": True}}
        return int(client.submit(key, [task], user="", key=key)["job_id"])

    def until_status(self, job: int, status: str) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            current = self.job(job)
            return current if current["status"] == status else None

        return wait_until(reached, lambda: f"job {job} {status}: {self.job(job)}", TIMEOUT_S)

    def machines(self) -> list[str]:
        """All machines ever launched."""
        return sorted(path.name for path in self.instances.glob("local-*"))

    def living(self) -> list[Path]:
        return list(self.instances.glob("*/machine"))

    def log(self, job: int, generation: int) -> bytes:
        """The stored log; empty for a machine that was gone before it sent anything."""
        path = self.home / "logs" / str(job) / "0" / str(generation) / "0.log"
        return path.read_bytes() if path.exists() else b""

    def end(self) -> None:
        with contextlib.suppress(ConnectionLost, ApiError):
            self.client.cancel(everything=True, graceful=False)
        self.until(lambda: not self.living(), "the end of every machine")
        self.daemon.terminate()
        self.daemon.wait(scaled(TIMEOUT_S))


@pytest.fixture
def plug(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[Plug]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    one = Plug(home, seed=7)
    one.survived = lambda: record_property("kills_survived", one.pulled)
    yield one
    one.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A home on a small file system, with its machines elsewhere."""
    home = tmp_path / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(home)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        (home / "config.yaml").write_text(f"local: {{directory: {tmp_path}}}\n")
        yield home
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def test_launch__is_made_once_despite_repeated_kills(plug: Plug) -> None:
    jobs = []
    for n in range(TIMES):
        plug.pull(lambda client, n=n: plug.submit(client, f"launch-{n}", "echo done"))  # type: ignore[misc]
        jobs.append(plug.submit(plug.client, f"launch-{n}", "echo done"))  # as a client does without a response
    assert len(set(jobs)) == TIMES == plug.client.jobs(limit=1)["total"]
    for job in jobs:
        done = plug.until_status(job, "SUCCEEDED")
        assert (done["generation"], done["recovery_count"]) == (1, 0)
        assert plug.log(job, 1) == b"done\n"
    plug.until(lambda: not plug.living(), "the end of every machine")
    assert len(plug.machines()) == TIMES, "none was bought twice"
    plug.survived()


def test_cancel__completes_when_repeated_after_kills(plug: Plug) -> None:
    for n in range(TIMES):
        job = plug.submit(plug.client, f"cancel-{n}", "echo begun; exec sleep 600")
        plug.until_status(job, "RUNNING")
        plug.pull(lambda client, job=job: client.cancel(ids=[job], grace_s=1))  # type: ignore[misc]
        with contextlib.suppress(ApiError):
            plug.client.cancel(ids=[job], grace_s=1)
        done = plug.until_status(job, "CANCELLED")
        assert (done["generation"], done["recovery_count"]) == (1, 0)
    plug.until(lambda: not plug.living(), "the end of every machine")
    assert len(plug.machines()) == TIMES
    plug.survived()


def test_preemption__is_recovered_once_despite_kills(plug: Plug) -> None:
    job = plug.submit(plug.client, "preempted", "echo begun; exec sleep 600")
    task_id = plug.until_status(job, "RUNNING")["task_id"]
    for generation in range(1, TIMES + 1):
        notice_s = 2.0 if generation % 2 else None
        plug.pull(lambda client, notice_s=notice_s: client.preempt(job, notice_s=notice_s))  # type: ignore[misc]
        shown = plug.job(job)
        if shown["generation"] == generation and shown["recovery_count"] != generation:
            machine = shown["attempts"][-1]["nodes"][0]["instance_id"]
            if (plug.instances / machine / "machine").exists():
                with contextlib.suppress(ApiError):  # it may be going already
                    plug.client.preempt(job, notice_s=notice_s)

        def runs_again(generation: int = generation) -> bool:
            current = plug.job(job)
            return bool(current["status"] == "RUNNING" and current["generation"] > generation)

        plug.until(runs_again, f"the job to run again after attempt {generation}")
    shown = plug.job(job)
    assert shown["task_id"] == task_id
    assert shown["recovery_count"] == shown["generation"] - 1 == len(shown["attempts"]) - 1
    assert len(plug.machines()) == len(shown["attempts"]), "each attempt had one machine"
    plug.client.cancel(ids=[job], graceful=False)
    plug.until_status(job, "CANCELLED")
    assert all(plug.log(job, a["generation"]) in (b"begun\n", b"") for a in shown["attempts"])
    plug.survived()


def test_running_job__is_shown_unchanged_after_a_restart(plug: Plug) -> None:
    lines = 300
    job = plug.submit(plug.client, "counts", COUNT.format(n=lines))
    before = plug.until_status(job, "RUNNING")
    for _ in range(TIMES // 2):
        plug.pull(lambda client: client.controller())
        after = plug.job(job)
        for name in ("task_id", "submitted_at", "generation", "recovery_count", "user"):
            assert after[name] == before[name], name
    plug.until_status(job, "SUCCEEDED")
    assert plug.log(job, 1) == b"".join(b"line %d\n" % i for i in range(1, lines + 1))
    plug.survived()


def test_second_daemon__on_the_same_home_is_refused(plug: Plug) -> None:
    second = daemon_forkserver.start(plug.home, environ=plug._environ, stderr=plug.home / "second")
    assert second.wait(scaled(TIMEOUT_S)) == 2
    assert f"a controller already runs on {plug.home}" in (plug.home / "second").read_text()
    with pytest.raises(CannotStart), single_instance_lock(plug.home):
        pass
    assert plug.client.controller()["pid"] == plug.daemon.pid, "the first is not disturbed"


def test_full_disk__rejects_new_jobs_and_keeps_running_ones(small_disk: Path) -> None:
    """Only the controller's disk is full."""
    one = Plug(small_disk, seed=3)
    try:
        job = one.submit(one.client, "runs", COUNT.format(n=100))
        other = one.submit(one.client, "stays", "sleep 600")
        one.until_status(job, "RUNNING")
        one.until_status(other, "RUNNING")
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(2**16))

        def is_refused() -> str:
            try:
                one.submit(one.client, os.urandom(8).hex(), "true # " + "x" * 10_000)
            except ApiError as error:
                return str(error)
            return ""

        output = one.until(is_refused, "a refusal")
        assert "nothing was changed" in output
        begun = time.monotonic()
        with pytest.raises(ApiError, match=r"full.*\n.*nothing was changed; see that its disk has room") as refused:
            one.client.cancel(ids=[other])
        assert refused.value.status == 503
        assert time.monotonic() - begun < scaled(15), "soon"
        pause(12)  # the job ends meanwhile, and its end cannot be recorded
        assert one.daemon.poll() is None
        filler.unlink()
        done = one.until_status(job, "SUCCEEDED")
        assert (done["generation"], done["recovery_count"]) == (1, 0)
        assert one.log(job, 1) == b"".join(b"line %d\n" % i for i in range(1, 101))
        one.until_status(one.submit(one.client, "after", "echo after"), "SUCCEEDED")
        assert one.client.job(other)["status"] == "RUNNING", "what was refused is not done later"
        one.client.cancel(ids=[other])
        one.until_status(other, "CANCELLED")
    finally:
        one.end()


def test_full_disk__is_reported_by_a_starting_daemon(small_disk: Path) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))
    errors = small_disk.parent / "errors"
    daemon = daemon_forkserver.start(small_disk, environ={"PATH": os.environ["PATH"]}, stderr=errors)
    assert daemon.wait(scaled(TIMEOUT_S)) == 2
    assert "No space left on device" in errors.read_text() or "disk is full" in errors.read_text()
    assert "Traceback" not in errors.read_text()
