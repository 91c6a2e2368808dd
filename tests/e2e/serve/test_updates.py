"""Updates that change the program alone: replicas get it on their machines, one after another, and no request fails."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import serve
from support.helpers.services import PROGRAM, Caller, ServiceHost, service_task
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

NAME, NUM_REPLICAS, PER_SECOND = "model", 2, 10
SETUP = 'echo "$MODEL" >> ~/installed'


@dataclass
class Callers:
    """Ten requests a second, each on a connection of its own, however long the others take."""

    caller: Caller
    stopped: threading.Event = field(default_factory=threading.Event)
    answers: Counter[Any] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        calls = []
        while not self.stopped.wait(1 / PER_SECOND):
            calls.append(threading.Thread(target=self.call, daemon=True))
            calls[-1].start()
        for call in calls:
            call.join(scaled(30))

    def call(self) -> None:
        try:
            answer = self.caller.call()
        except (OSError, http.client.HTTPException) as error:
            self.answers[repr(error)] += 1
            return
        self.answers[answer.status] += 1
        self.models[answer.json().get("model", "")] += 1


@contextlib.contextmanager
def calling(caller: Caller) -> Iterator[Callers]:
    running = Callers(caller)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    yield running
    running.stopped.set()
    thread.join()


def task(workdir: Path, model: str, *, run: str = "exec python3 server.py 8080", count: int = NUM_REPLICAS) -> Any:
    return service_task({"replicas": count}, run=run, setup=SETUP, workdir=str(workdir), envs={"MODEL": model})


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "server.py").write_text(PROGRAM.read_text())
    (folder / "obsolete.py").write_text("")
    return folder


@pytest.fixture(scope="module")
def caller(sky: ServiceHost, workdir: Path) -> Caller:
    return sky.up(NAME, task(workdir, "first"), ready=NUM_REPLICAS)


def versions(sky: ServiceHost) -> list[tuple[int, int | None, int]]:
    """Number, job and version of the replicas that are ready."""
    return [(one["number"], one["job_id"], one["version"]) for one in sky.ready(NAME)]


def test_update__of_the_program_keeps_the_machines(sky: ServiceHost, caller: Caller, workdir: Path) -> None:
    before = versions(sky)
    (workdir / "obsolete.py").unlink()
    (workdir / "server.py").write_text(PROGRAM.read_text().replace('"tiny")})', '"tiny") + "!"})'))
    seen = []

    def is_done() -> bool:
        now = versions(sky)
        seen.append(len(now))
        return [one[2] for one in now] == [2] * NUM_REPLICAS

    with calling(caller) as running:
        sky.controller.until(lambda: running.answers[200] > PER_SECOND, "answers of the old version")
        assert serve.update(task(workdir, "second"), NAME, client=sky.client)["version"] == 2
        sky.controller.until(is_done, "the new version on all machines")
        sky.controller.until(lambda: running.models["second!"] > PER_SECOND, "answers of the new version")
    assert set(running.answers) == {200}
    assert versions(sky) == [(number, job, 2) for number, job, _ in before]
    assert min(seen) >= NUM_REPLICAS - 1, "one after another"
    assert len(sky.get(NAME)["replicas"]) == NUM_REPLICAS, "no machine was bought"
    files = sky.controller.perdure("jobs", "exec", before[0][1], "--", "sh", "-c", "cat ~/installed; ls ~/sky_workdir")
    assert files.stdout.split() == ["first", "second", "server.py"]
    log = sky.controller.perdure("serve", "logs", NAME, "1", "--no-follow").stdout
    assert log.count("loading the model") == 2
    requests = sky.controller.perdure("serve", "logs", NAME, "--load-balancer").stdout
    assert "no server available" not in requests, "one comes before the other leaves"
    timeline = sky.controller.perdure("serve", "logs", NAME, "--controller").stdout
    assert timeline.count("replica_changed") == NUM_REPLICAS


def test_update__that_cannot_start_gives_the_machine_back(sky: ServiceHost, caller: Caller, workdir: Path) -> None:
    before = versions(sky)
    with calling(caller) as running:
        serve.update(task(workdir, "third", run="echo 'no such file: weights'; exit 7"), NAME, client=sky.client)
        sky.until(NAME, lambda one: "the update has failed" in one["message"], "a failed update")
        sky.controller.until(lambda: versions(sky) == before, "the earlier version on all machines")
    service = sky.get(NAME)
    assert set(running.answers) == {200}
    assert service["status"] == "READY"
    assert "no such file: weights" in service["message"]
    assert len(service["replicas"]) == NUM_REPLICAS
    assert caller.call().json()["model"] == "second!"


def test_update__after_a_failed_one_is_taken(sky: ServiceHost, caller: Caller, workdir: Path) -> None:
    before = versions(sky)
    version = serve.update(task(workdir, "fourth"), NAME, client=sky.client)["version"]
    expected = [(number, job, version) for number, job, _ in before]
    sky.controller.until(lambda: versions(sky) == expected, "the new version on all machines")
    assert sky.get(NAME)["message"] == ""
    sky.controller.perdure("serve", "down", NAME, "--yes")
    sky.controller.until(sky.no_machines, "the end of every machine")


def test_update__to_other_machines_fails_no_request(sky: ServiceHost, workdir: Path) -> None:
    def on(memory: str, model: str) -> Any:
        section = {"replicas": NUM_REPLICAS}
        return service_task(section, envs={"MODEL": model}, resources={"memory": memory})

    caller = sky.up("moving", on("1+", "first"), ready=NUM_REPLICAS)
    with calling(caller) as running:
        sky.controller.until(lambda: running.models["first"] > PER_SECOND, "answers of the old version")
        serve.update(on("2+", "second"), "moving", client=sky.client)
        sky.controller.until(
            lambda: [one["version"] for one in sky.ready("moving")] == [2] * NUM_REPLICAS, "the new one"
        )
        sky.controller.until(lambda: running.models["second"] > PER_SECOND, "answers of the new version")
    assert set(running.answers) == {200}
    assert min(one["number"] for one in sky.ready("moving")) > NUM_REPLICAS, "new machines"
    sky.controller.perdure("serve", "down", "moving", "--yes")


def test_restore__of_a_backup_before_an_update_brings_its_version_back(
    sky: ServiceHost, workdir: Path, tmp_path: Path
) -> None:
    name, controller = "restored", sky.controller
    caller = sky.up(name, task(workdir, "backed-up"), ready=NUM_REPLICAS)
    controller.perdure("controller", "backup", tmp_path / "one.backup")
    version = serve.update(task(workdir, "lost"), name, client=sky.client)["version"]
    sky.until(name, lambda one: [r["version"] for r in one["replicas"]] == [version] * NUM_REPLICAS, "the update")
    sky.until_ready(name, NUM_REPLICAS)
    before = [one["job_id"] for one in sky.ready(name)]
    controller.perdure("controller", "stop")
    for file in controller.home.glob("perdure.db*"):
        file.unlink()
    controller.perdure("controller", "restore", tmp_path / "one.backup")
    controller.perdure("controller", "start")
    sky.until(name, lambda one: one["version"] == 1, "the earlier version")
    sky.until_ready(name, NUM_REPLICAS)
    assert [one["job_id"] for one in sky.ready(name)] == before, "on the same machines"
    assert caller.call().json()["model"].startswith("backed-up")
    controller.perdure("serve", "down", name, "--yes")
    controller.until(sky.no_machines, "the end of every machine")
