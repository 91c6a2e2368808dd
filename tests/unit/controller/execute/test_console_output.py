"""The log of an attempt shows the console of its machines that never called."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.clouds.registry import UnavailableCloud
from perdure.controller.execute import console_output
from perdure.controller.execute.console_output import MAX_CHARACTERS, ConsoleRecorder, readable
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.recovery.statuses import NodePhase
from support.helpers.timing import scaled
from unit.controller.store.clusters.kept_cluster import KeptCluster
from unit.controller.world import World

KEY = (1, 0, 1)
URL = "https://controller.example.com:8443"
CONSOLE = "[    0.0] Linux\r\n\x1b[0;1;31mperdure: timed out\x1b[0m\r\n"


class Scene:
    def __init__(self, folder: Path) -> None:
        self.cloud = FakeCloud(ManualClock())
        self.logs = FileLogStore(folder)
        self.grown: list[int] = []
        self.recorder = ConsoleRecorder(self.logs, self.grown.append, URL)

    def record(self, cloud: Cloud, region: str, key: AttemptKey, machines: list[tuple[int, str]]) -> None:
        self.recorder.read_consoles(cloud, region, key, machines)
        self.recorder.add_to_logs(key)

    def text(self, rank: int = 0) -> str:
        return self.logs.read_range(KEY, rank, 0, self.logs.size(KEY, rank)).decode()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", ""),
        ("a\r\nb\rc\n\n", "a\nb\nc"),
        ("\x1b[0;32m  OK  \x1b[0m Started", "OK   Started"),
        ("\x1b]0;title\x07$ \x00\x08x", "$ x"),
        ("tab\tä€", "tab\tä€"),
        ("x" * 10 + "\n" + "y" * MAX_CHARACTERS, "y" * MAX_CHARACTERS),
        ("first\nlast " + "y" * MAX_CHARACTERS, "y" * MAX_CHARACTERS),
    ],
)
def test_readable__is_plain_text_of_limited_length(output: str, expected: str) -> None:
    assert readable(output) == expected


@pytest.mark.parametrize("begun", ["\x1b]", "\x1b[", "\x1b]x\n", "\x1b[0;", "\x1b]\x1b\\"])
def test_readable__sequences_without_an_end_take_no_time(begun: str) -> None:
    began = time.process_time()
    readable(begun * (2**20 // len(begun)))
    assert time.process_time() - began < scaled(1.0)


def test_readable__begins_with_a_whole_line() -> None:
    lines = "\n".join(f"line {number:06}" for number in range(MAX_CHARACTERS))
    assert readable(lines).startswith("line ")
    assert readable(lines).endswith(f"line {MAX_CHARACTERS - 1:06}")
    assert len(readable(lines)) <= MAX_CHARACTERS


def test_record__says_what_was_not_called_and_shows_the_console(scene: Scene) -> None:
    scene.cloud.consoles["m-1"] = CONSOLE
    scene.record(scene.cloud, "east", KEY, [(0, "m-1")])
    assert scene.text().splitlines() == [
        f"[perdure: m-1 never called {URL}. Its console:]",
        "[    0.0] Linux",
        "perdure: timed out",
        "[perdure: the end of the console of m-1]",
    ]
    assert scene.grown == [1]


def test_record__adds_nothing_to_a_log_that_has_something(scene: Scene) -> None:
    scene.logs.append(KEY, 0, 0, b"hello\n")
    for _ in range(2):
        scene.record(scene.cloud, "east", KEY, [(0, "m-1"), (1, "m-2")])
    assert scene.text(0) == "hello\n"
    assert scene.text(1) == f"[perdure: m-2 never called {URL}. fake has no output of its console.]\n"


def test_record__survives_a_cloud_that_fails_or_has_no_consoles(scene: Scene) -> None:
    scene.cloud.faults.throttle = 1
    scene.record(scene.cloud, "east", KEY, [(0, "m-1")])
    assert "Its console cannot be read: " in scene.text(0)
    scene.record(UnavailableCloud("toy", "gone"), "east", KEY, [(1, "m-2")])
    assert scene.logs.size(KEY, 1) == 0


def test_record__of_a_machine_that_calls_late_leaves_its_log_whole(scene: Scene) -> None:
    scene.cloud.consoles["m-1"] = CONSOLE
    scene.recorder.read_consoles(scene.cloud, "east", KEY, [(0, "m-1")])
    scene.logs.append(KEY, 0, 0, b"hello\n")
    scene.recorder.add_to_logs(KEY)
    assert scene.text() == "hello\n"


def test_read_consoles__of_a_cloud_that_hangs_takes_a_limited_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines cost money until they are ended."""
    answers = threading.Event()
    monkeypatch.setattr(console_output, "READ_TIMEOUT_S", 0.05)
    monkeypatch.setattr(scene.cloud, "console_output", lambda *_: answers.wait(scaled(30)) and "late")
    began = time.monotonic()
    scene.record(scene.cloud, "east", KEY, [(0, "m-1"), (1, "m-2")])
    assert time.monotonic() - began < scaled(5.0)
    assert scene.logs.size(KEY, 0) == 0
    answers.set()


def test_read_consoles__holds_a_limited_number_of_consoles(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_output, "_MAX_ATTEMPTS", 2)
    for job in (1, 2, 3):
        scene.recorder.read_consoles(scene.cloud, "east", (job, 0, 1), [(0, f"m-{job}")])
    for job in (1, 2, 3):
        scene.recorder.add_to_logs((job, 0, 1))
    assert [scene.logs.size((job, 0, 1), 0) > 0 for job in (1, 2, 3)] == [False, True, True]


def test_record__is_limited_to_two_machines_of_a_gang(scene: Scene) -> None:
    scene.record(scene.cloud, "east", KEY, [(rank, f"m-{rank}") for rank in range(8)])
    assert [scene.logs.size(KEY, rank) > 0 for rank in range(4)] == [True, True, False, False]


def test_attempt__whose_machine_never_calls_ends_with_its_console_in_the_log(world: World, tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path / "logs")
    world.console = ConsoleRecorder(logs, lambda _job: None, URL)
    world.current = world.controller(world.owner)
    job = world.submit()
    (machine,) = world.living()
    world.cloud.consoles[machine] = CONSOLE
    world.pass_time(1000, step_s=10.0)
    size = logs.size((job, 0, 1), 0)
    assert b"perdure: timed out" in logs.read_range((job, 0, 1), 0, 0, size)


def test_attempt__with_a_kept_disk_that_never_calls_leaves_its_console_in_the_log(world: World, tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path / "logs")
    world.console = ConsoleRecorder(logs, lambda _job: None, URL)
    cluster = KeptCluster(world)
    cluster.start()
    (machine,) = cluster.machines()
    cluster.stop()
    world.cloud.consoles[machine] = CONSOLE
    job = cluster.begin_start()
    world.pass_time(1000, step_s=10.0)
    assert cluster.machines().keys() == {machine}, "it is kept"
    size = logs.size((job, 0, 1), 0)
    assert b"perdure: timed out" in logs.read_range((job, 0, 1), 0, 0, size)


def test_attempt__whose_machine_has_called_ends_without_its_console(world: World, tmp_path: Path) -> None:
    logs = FileLogStore(tmp_path / "logs")
    world.console = ConsoleRecorder(logs, lambda _job: None, URL)
    world.current = world.controller(world.owner)
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(10)
    assert not world.living()
    assert logs.size((job, 0, 1), 0) == 0
    assert world.cloud.calls["console_output"] == 0
