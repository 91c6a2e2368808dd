"""The daemon is killed at random moments of a launch, a cancel and a preemption, and a new one started on its state.

What is right afterwards is counted on the cloud's side: machines, and how each of them ended. (`tests/crash` kills at
named points; here the moment is anybody's.)
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
from typing import Any

import pytest

import warm
from perdure.controller.daemon import CannotStart, only_one
from perdure.sdk.client import ApiError, Client, ConnectionLost
from perdure.sdk.endpoint import Endpoint, running

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TIMES = 20
MOST_S = 0.4  # the daemon dies so soon after it was asked
PATIENCE_S = 120.0
DISK = "32m"
COUNT = "for i in $(seq {n}); do echo line $i; sleep 0.1; done"


class Plug:
    """A daemon on `home` that can be killed and started again.

    `pulled`: how often it was killed. `survived` is to be called at the end: it goes to the summary of all tests.
    """

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.pulled = 0
        self.survived: Callable[[], None] = lambda: None
        self._chance = random.Random(seed)
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        self.begin()

    def begin(self) -> None:
        self.daemon = warm.start(self.home, environ=self._environ, stderr=self.home / "stderr")
        self.until(self._answers, "the daemon's start")

    def _answers(self) -> bool:
        assert self.daemon.poll() is None, (self.home / "stderr").read_text()
        found = running(self.home)
        return found is not None and found.pid == self.daemon.pid

    @property
    def instances(self) -> Path:
        """The machines' folders."""
        return (self.home if (self.home / "local").exists() else self.home.parent) / "local" / "instances"

    @property
    def client(self) -> Client:
        """One that starts no daemon of its own."""
        found = running(self.home)
        if found is None:
            raise ConnectionLost("no daemon runs")
        return Client(Endpoint(found.url, found.token))

    def pull(self, ask: Callable[[Client], Any]) -> None:
        """Ask, kill the daemon a moment later, whatever it has done of it by then, and start another."""
        client = self.client

        def try_to_ask() -> None:
            with contextlib.suppress(ConnectionLost, ApiError):
                ask(client)

        asking = threading.Thread(target=try_to_ask)
        asking.start()
        threading.Event().wait(self._chance.uniform(0, MOST_S))
        self.daemon.kill()
        self.daemon.wait(PATIENCE_S)
        asking.join()
        self.pulled += 1
        self.begin()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        give_up_at = time.monotonic() + PATIENCE_S
        while not (answer := condition()):
            assert time.monotonic() < give_up_at, f"in vain: {what}"
            threading.Event().wait(0.05)
        return answer

    def job(self, job: int) -> dict[str, Any]:
        return dict(self.client.job(job))

    def submit(self, client: Client, key: str, run: str) -> int:
        task = {"name": key, "run": run, "resources": {"use_spot": True}}
        return int(client.submit(key, [task], user="", key=key)["job_id"])

    def until_status(self, job: int, status: str) -> dict[str, Any]:
        return dict(
            self.until(
                lambda: (found := self.job(job))["status"] == status and found, f"job {job} {status}: {self.job(job)}"
            )
        )

    def machines(self) -> list[str]:
        """All that were ever bought."""
        return sorted(path.name for path in self.instances.glob("local-*"))

    def living(self) -> list[Path]:
        return list(self.instances.glob("*/machine"))

    def log(self, job: int, generation: int) -> bytes:
        """What is kept of it; nothing of a machine that was gone before it said anything."""
        path = self.home / "logs" / str(job) / "0" / str(generation) / "0.log"
        return path.read_bytes() if path.exists() else b""

    def end(self) -> None:
        with contextlib.suppress(ConnectionLost, ApiError):
            self.client.cancel(everything=True, graceful=False)
        self.until(lambda: not self.living(), "the end of every machine")
        self.daemon.terminate()
        self.daemon.wait(PATIENCE_S)


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
    """A home on a small file system of its own, and machines that are not on it."""
    home = tmp_path / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(home)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system can not be mounted here")
    try:
        (home / "config.yaml").write_text(f"local: {{directory: {tmp_path}}}\n")
        yield home
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def test_a_launch_is_made_once_however_often_it_is_cut_short(plug: Plug) -> None:
    jobs = []
    for n in range(TIMES):
        plug.pull(lambda client, n=n: plug.submit(client, f"launch-{n}", "echo done"))  # type: ignore[misc]
        jobs.append(plug.submit(plug.client, f"launch-{n}", "echo done"))  # as one does who was not answered
    assert len(set(jobs)) == TIMES == plug.client.jobs(limit=1)["total"]
    for job in jobs:
        done = plug.until_status(job, "SUCCEEDED")
        assert (done["generation"], done["recovery_count"]) == (1, 0)
        assert plug.log(job, 1) == b"done\n"
    plug.until(lambda: not plug.living(), "the end of every machine")
    assert len(plug.machines()) == TIMES, "none was bought twice"
    plug.survived()


def test_a_cancel_is_done_once_it_is_asked_for_again(plug: Plug) -> None:
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


def test_a_preemption_is_recovered_from_once_and_the_job_keeps_its_name(plug: Plug) -> None:
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
            found = plug.job(job)
            return found["status"] == "RUNNING" and found["generation"] > generation

        plug.until(runs_again, f"the job to run again after attempt {generation}")
    shown = plug.job(job)
    assert shown["task_id"] == task_id
    assert shown["recovery_count"] == shown["generation"] - 1 == len(shown["attempts"]) - 1
    assert len(plug.machines()) == len(shown["attempts"]), "each attempt had one machine"
    plug.client.cancel(ids=[job], graceful=False)
    plug.until_status(job, "CANCELLED")
    assert all(plug.log(job, a["generation"]) in (b"begun\n", b"") for a in shown["attempts"])
    plug.survived()


def test_a_running_job_is_shown_as_it_was_by_the_one_that_comes_after(plug: Plug) -> None:
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


def test_a_second_daemon_on_the_same_state_is_refused(plug: Plug) -> None:
    second = warm.start(plug.home, environ=plug._environ, stderr=plug.home / "second")
    assert second.wait(PATIENCE_S) == 2
    assert f"a controller already runs on {plug.home}" in (plug.home / "second").read_text()
    with pytest.raises(CannotStart), only_one(plug.home):
        pass
    assert plug.client.controller()["pid"] == plug.daemon.pid, "the first is not disturbed"


def test_a_full_disk_costs_new_jobs_and_no_others(small_disk: Path) -> None:
    """The controller's; its machines have another."""
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

        said = one.until(is_refused, "a refusal")
        assert "nothing was changed" in said
        begun = time.monotonic()
        with pytest.raises(ApiError, match=r"full.*\n.*nothing was changed; see that its disk has room") as refused:
            one.client.cancel(ids=[other])
        assert refused.value.status == 503
        assert time.monotonic() - begun < 15, "soon"
        threading.Event().wait(12)  # the job ends meanwhile, and that can not be written down
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


def test_a_daemon_that_finds_no_room_says_so(small_disk: Path) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))
    errors = small_disk.parent / "errors"
    daemon = warm.start(small_disk, environ={"PATH": os.environ["PATH"]}, stderr=errors)
    assert daemon.wait(PATIENCE_S) == 2
    assert "No space left on device" in errors.read_text() or "disk is full" in errors.read_text()
    assert "Traceback" not in errors.read_text()
