"""The log of an attempt shows the console of its machines that never called."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.clouds.registry import UnavailableCloud
from perdure.controller.execute.console_output import MAX_CHARACTERS, ConsoleRecorder, readable
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.recovery.statuses import NodePhase
from support.helpers.timing import scaled
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
    scene.recorder.record(scene.cloud, "east", KEY, [(0, "m-1")])
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
        scene.recorder.record(scene.cloud, "east", KEY, [(0, "m-1"), (1, "m-2")])
    assert scene.text(0) == "hello\n"
    assert scene.text(1) == f"[perdure: m-2 never called {URL}. fake has no output of its console.]\n"
    assert scene.cloud.calls["console_output"] == 1


def test_record__survives_a_cloud_that_fails_or_has_no_consoles(scene: Scene) -> None:
    scene.cloud.faults.throttle = 1
    scene.recorder.record(scene.cloud, "east", KEY, [(0, "m-1")])
    assert "Its console cannot be read: " in scene.text(0)
    scene.recorder.record(UnavailableCloud("toy", "gone"), "east", KEY, [(1, "m-2")])
    assert scene.logs.size(KEY, 1) == 0


def test_record__is_limited_to_two_machines_of_a_gang(scene: Scene) -> None:
    scene.recorder.record(scene.cloud, "east", KEY, [(rank, f"m-{rank}") for rank in range(8)])
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
