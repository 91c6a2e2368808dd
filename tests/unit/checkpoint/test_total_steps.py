"""A program that says how many steps it takes: told with every checkpoint, on the node and to the controller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.agent.checkpoints import note_durable
from perdure.checkpoint import Checkpointer, journal


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "_total_steps", None)
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    return tmp_path / "checkpoints.jsonl"


def lines(told: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in told.read_text().splitlines()]


def test_each_checkpoint_tells_it(told: Path, tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "checkpoints", total_steps=40) as checkpoints:
        checkpoints.save(1, {"step": 1})
    assert {line["total_steps"] for line in lines(told)} == {40}


def test_who_does_not_say_it_tells_nothing(told: Path, tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, {"step": 1})
    assert not any("total_steps" in line for line in lines(told))


def test_it_is_told_as_well_when_the_agent_finds_it_durable(told: Path, tmp_path: Path) -> None:
    journal.expect(40)
    journal.note(3, journal.COMMITTED, f"{tmp_path}/bucket/step_3")
    note_durable(told, [f"{tmp_path}/bucket"])
    assert [(line["state"], line["total_steps"]) for line in lines(told)] == [("committed", 40), ("durable", 40)]


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_what_is_no_number_of_steps_is_refused(told: Path, tmp_path: Path, steps: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Checkpointer(tmp_path / "checkpoints", total_steps=steps)  # type: ignore[arg-type]
