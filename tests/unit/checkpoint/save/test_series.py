"""A series is what one function wrote: functions and programs that save side by side keep and load their own steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.checkpoint import NoUsableCheckpoint, load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.__main__ import main
from perdure.checkpoint.format import step_names
from perdure.checkpoint.format.part_names import Writer
from support.helpers.timing import scaled
from unit.checkpoint.training_program import CommittedSteps, ManifestOf, Restart


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} - {
        str(path.relative_to(directory)) for path in (directory / ".perdure").rglob("*")
    }


def test_series__of_two_functions_with_one_prefix(save_dir: Path, restart: Restart) -> None:
    @save_checkpoint(save_dir, max_checkpoints=5)
    def save_model(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"m%d" % step)

    @save_checkpoint(save_dir, max_checkpoints=5)
    def save_training_state(step: int) -> None:
        (save_dir / f"training_{step}.pt").write_bytes(b"t%d" % step)

    for step in range(1, 30):
        save_model(step)
        if step % 10 == 0:
            save_training_state(step)
    models = {f"model_{step}.pt" for step in range(25, 30)}
    assert names(save_dir) == models | {"training_10.pt", "training_20.pt"}
    restart()
    load_model = load_checkpoint(save_dir)(lambda step: (save_dir / f"model_{step}.pt").read_bytes())
    load_training = load_checkpoint(save_dir)(lambda step: (save_dir / f"training_{step}.pt").read_bytes())
    assert load_model() == b"m29"
    assert load_training() == b"t20"
    assert main(["prune", str(save_dir), "--last", "1"]) == 0
    assert names(save_dir) == {"model_29.pt", "training_20.pt"}


PROGRAM = """
import sys, time
from pathlib import Path
from perdure.checkpoint import save_checkpoint
root, prefix = Path(sys.argv[1]), sys.argv[2]

@save_checkpoint(root, max_checkpoints=3, checkpoint_prefix=prefix)
def save(step):
    with open(root / f"{prefix}_{step}.bin", "wb") as file:
        for _ in range(20):
            file.write(prefix.encode())
            file.flush()
            time.sleep(0.001)

for step in range(12):
    save(step)
"""


def test_series__of_two_programs_in_one_directory(save_dir: Path, manifest_of: ManifestOf) -> None:
    programs = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(save_dir), prefix]) for prefix in ("one", "two")]
    try:
        assert [program.wait(scaled(60)) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert names(save_dir) == {f"{prefix}_{step}.bin" for prefix in ("one", "two") for step in (9, 10, 11)}
    for path in (save_dir / ".perdure").glob("*.json"):
        document = json.loads(path.read_text())
        assert [file["path"] for file in document["files"]] == [f"{document['prefix']}_{document['step']}.bin"]
    assert {info.state for info in steps(save_dir, verify=True)} == {"committed"}


def test_series__file_of_another_machine_that_becomes_visible_during_a_call(save_dir: Path) -> None:
    @save_checkpoint(save_dir, checkpoint_prefix="theirs")
    def save_theirs(step: int) -> None:
        (save_dir / f"theirs_{step}.bin").write_bytes(b"x")

    save_theirs(1)
    (save_dir / "theirs_1.bin").rename(save_dir.parent / "not listed yet")

    @save_checkpoint(save_dir, checkpoint_prefix="mine")
    def save_mine(step: int) -> None:
        (save_dir / f"mine_{step}.bin").write_bytes(b"x")
        (save_dir.parent / "not listed yet").rename(save_dir / "theirs_1.bin")

    save_mine(1)
    assert {info.prefix: info.files for info in steps(save_dir)} == {
        "mine": ("mine_1.bin",),
        "theirs": ("theirs_1.bin",),
    }


def test_series__parts_of_a_checkpointer_are_no_part_of_it(save_dir: Path) -> None:
    @save_checkpoint(save_dir, checkpoint_prefix="mine")
    def save(step: int) -> None:
        (save_dir / f"mine_{step}.bin").write_bytes(b"x")
        (save_dir / f"checkpoint-{7:012d}-0of1-00c0ffee.safetensors").write_bytes(b"of another program")
        (save_dir / Writer.current().temporary_name("checkpoint")).write_bytes(b"of another program")

    save(1)
    assert {info.prefix: info.files for info in steps(save_dir)} == {"mine": ("mine_1.bin",)}


def test_retention__file_that_was_written_once_stays(save_dir: Path) -> None:
    @save_checkpoint(save_dir, max_checkpoints=1)
    def save(step: int) -> None:
        (save_dir / "resnet50").mkdir(exist_ok=True)
        (save_dir / "resnet50" / f"model_{step}.pt").write_bytes(b"x")
        (save_dir / f"epoch_{step}").mkdir()
        (save_dir / f"epoch_{step}" / "weights").write_bytes(b"x")
        if step == 1:
            (save_dir / "tokenizer_v1.json").write_bytes(b"{}")
            (save_dir / "config.json").write_bytes(b"{}")
        if step == 50:
            (save_dir / "resnet50" / "labels.json").write_bytes(b"{}")
            (save_dir / "epoch_50" / "only here").write_bytes(b"x")

    for step in (1, 2, 49, 50, 51, 52):
        save(step)
    assert names(save_dir) == {
        "tokenizer_v1.json",
        "config.json",
        "resnet50/labels.json",
        "resnet50/model_52.pt",
        "epoch_52/weights",
    }


@pytest.mark.parametrize(
    ("path", "step", "expected"),
    [
        ("model_7.pt", 7, {"model_{step}.pt"}),
        ("step_007/shard", 7, {"step_{step}"}),
        ("v7/model_7.pt", 7, {"v{step}", "v7/model_{step}.pt", "v{step}/model_7.pt", "v{step}/model_{step}.pt"}),
        ("latest.pt", 7, set()),
        ("model_77.pt", 7, set()),
    ],
)
def test_templates__of_a_path(path: str, step: int, expected: set[str]) -> None:
    assert step_names.templates(path, step) == expected


def overwriting(save_dir: Path, name: str, content: Callable[[int], bytes]) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"m_{step}.pt").write_bytes(b"%d" % step)
        (save_dir / name).write_bytes(content(step))

    for step in (1, 2, 3):
        save(step)


@pytest.mark.parametrize("name", ["latest.pt", "m_latest.pt", "train.log"])
@pytest.mark.parametrize("length", [10, -10])
def test_load__file_that_every_save_overwrites_condemns_no_older_step(
    save_dir: Path, restart: Restart, caplog: pytest.LogCaptureFixture, length: int, name: str
) -> None:
    overwriting(save_dir, name, lambda step: b"%d" % step * (100 + step * length))
    assert "older steps are loaded without it" in caplog.text
    (save_dir / "m_3.pt").write_bytes(b"?")
    restart()
    assert load_checkpoint(save_dir)(lambda step: step)() == 2
    assert f"a later step has overwritten {name}, so it is not verified" in caplog.text


def test_load__step_that_has_no_file_of_its_own_is_refused_once_overwritten(save_dir: Path, restart: Restart) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / "latest.pt").write_bytes(b"%d" % step)

    for step in (1, 2):
        save(step)
    restart()
    assert load_checkpoint(save_dir)(lambda step: step)() == 2
    (save_dir / "latest.pt").write_bytes(b"?")
    restart()
    with pytest.raises(NoUsableCheckpoint):
        load_checkpoint(save_dir)(lambda step: step)()


def test_save__inside_of_a_save_of_another_function(save_dir: Path, committed: CommittedSteps) -> None:
    @save_checkpoint(save_dir, checkpoint_prefix="inner")
    def inner(step: int) -> None:
        (save_dir / f"inner_{step}.bin").write_bytes(b"x")

    @save_checkpoint(save_dir, checkpoint_prefix="outer")
    def outer(step: int) -> None:
        (save_dir / f"outer_{step}.bin").write_bytes(b"x")
        inner(step)

    outer(1)
    assert os.environ.get("PERDURE_SAVING") is None
    assert {info.prefix: info.files for info in steps(save_dir)} == {
        "inner": ("inner_1.bin",),
        "outer": ("outer_1.bin",),
    }
