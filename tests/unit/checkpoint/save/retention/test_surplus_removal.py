"""Old checkpoints are removed once newer ones are safe, and nothing else is ever removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from perdure.checkpoint import load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.durability import status
from support.helpers.timing import scaled
from unit.checkpoint.training_program import CommittedSteps, Restart


class Save(Protocol):
    def __call__(
        self, step: int, *, keep: int | None = 2, prefix: str = "checkpoint", content: bytes = b"x"
    ) -> None: ...


@pytest.fixture
def save(save_dir: Path) -> Save:
    """Saves a step under a prefix, keeping `keep`."""

    def save(step: int, *, keep: int | None = 2, prefix: str = "checkpoint", content: bytes = b"x") -> None:
        @save_checkpoint(save_dir, max_checkpoints=keep, checkpoint_prefix=prefix)
        def write(step: int) -> None:
            (save_dir / f"{prefix}_{step}.pt").write_bytes(content)

        write(step)

    return save


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".perdure")


def test_prune__keeps_the_newest_with_their_files(save_dir: Path, save: Save, committed: CommittedSteps) -> None:
    for step in (1, 2, 30, 100):
        save(step)
    assert committed(save_dir) == [100, 30]
    assert files(save_dir) == ["checkpoint_100.pt", "checkpoint_30.pt"]


def test_prune__keep_none_keeps_all(save_dir: Path, save: Save, committed: CommittedSteps) -> None:
    for step in range(12):
        save(step, keep=None)
    assert committed(save_dir) == list(range(11, -1, -1))


def test_prune__smaller_limit_removes_the_rest_at_once(save_dir: Path, save: Save, committed: CommittedSteps) -> None:
    for step in range(6):
        save(step, keep=None)
    save(6, keep=1)
    assert committed(save_dir) == [6]
    assert files(save_dir) == ["checkpoint_6.pt"]


def test_prune__keeps_the_step_just_saved_even_if_lower(save_dir: Path, save: Save, committed: CommittedSteps) -> None:
    for step in (100, 200):
        save(step)
    save(5)
    assert committed(save_dir) == [200, 100, 5]
    save(6)
    assert committed(save_dir) == [200, 100, 6]
    assert "checkpoint_6.pt" in files(save_dir)


def test_prune__counts_prefixes_separately(save_dir: Path, save: Save, committed: CommittedSteps) -> None:
    for step in (1, 2, 3):
        save(step, prefix="a")
        save(step, prefix="b", keep=1)
    assert committed(save_dir, "a") == [3, 2]
    assert committed(save_dir, "b") == [3]
    assert files(save_dir) == ["a_2.pt", "a_3.pt", "b_3.pt"]


def test_prune__damaged_checkpoints_do_not_displace_whole_ones(
    save_dir: Path, save: Save, committed: CommittedSteps, restart: Restart
) -> None:
    for step in (1, 2, 3):
        save(step, keep=3, content=b"good")
    for step in (2, 3):
        (save_dir / f"checkpoint_{step}.pt").write_bytes(b"GOOD")
    restart()
    load = load_checkpoint(save_dir)(lambda step: step)
    assert load() == 1
    save(4, keep=2)
    assert committed(save_dir) == [4, 3, 2, 1]
    save(5, keep=2)
    assert committed(save_dir) == [5, 4]
    assert files(save_dir) == ["checkpoint_4.pt", "checkpoint_5.pt"]


def test_prune__truncated_checkpoints_do_not_count(save_dir: Path, save: Save, committed: CommittedSteps) -> None:
    for step in (1, 2, 3):
        save(step, keep=3, content=b"good")
    for step in (2, 3):
        (save_dir / f"checkpoint_{step}.pt").write_bytes(b"")
    save(4, keep=2)
    assert committed(save_dir) == [4, 3, 2, 1]


def test_prune__damaged_manifests_neither_count_nor_go(
    save_dir: Path, save: Save, committed: CommittedSteps, restart: Restart
) -> None:
    for step in (1, 2, 3):
        save(step, keep=3)
    for step in (1, 3):
        (path,) = (save_dir / ".perdure").glob(f"*-{step:012d}-*.json")
        path.write_text("{")
    restart()
    save(4)
    assert committed(save_dir) == [4, 3, 2, 1]
    save(5)
    assert committed(save_dir) == [5, 4, 3, 1]


def test_prune__shared_and_foreign_files_stay(save_dir: Path, committed: CommittedSteps) -> None:
    (save_dir / "model_1.notes").write_text("mine")

    @save_checkpoint(save_dir, max_checkpoints=1)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        (save_dir / "config.json").write_bytes(b"{}")
        if step == 1:
            (save_dir / "best.pt").write_bytes(b"the best so far")
        (save_dir / "all" / f"{step}").mkdir(parents=True)
        (save_dir / "all" / f"{step}" / "shard").write_bytes(b"x")

    for step in (1, 2, 3):
        save(step)
        if step == 1:
            (save_dir / "all" / "1" / "mine.txt").write_bytes(b"x")
    assert committed(save_dir) == [3]
    assert files(save_dir) == ["all", "best.pt", "config.json", "model_1.notes", "model_3.pt"]
    assert files(save_dir / "all") == ["1", "3"]  # a folder that holds anything else stays
    assert [info.state for info in steps(save_dir, verify=True)] == ["committed"]


def test_prune__file_listed_under_another_prefix_stays(save_dir: Path) -> None:
    def write(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"%d" % step)

    keep_all = save_checkpoint(save_dir, max_checkpoints=None, checkpoint_prefix="milestone")(write)
    keep_one = save_checkpoint(save_dir, max_checkpoints=1)(write)
    for step in (1, 2, 3):
        keep_one(step)
        if step != 2:
            keep_all(step)
    assert files(save_dir) == ["model_1.pt", "model_3.pt"]
    assert {(i.prefix, i.step): i.state for i in steps(save_dir, verify=True)} == {
        ("checkpoint", 3): "committed",
        ("milestone", 3): "committed",
        ("milestone", 1): "committed",
    }


def test_prune__file_that_another_process_committed_during_the_save_stays(save_dir: Path) -> None:
    another = "from perdure.checkpoint import save_checkpoint; import sys; from pathlib import Path"
    program = (
        f"{another}\nsave_checkpoint(sys.argv[1], checkpoint_prefix='other')("
        "lambda step: Path(sys.argv[1], 'model_1.pt').write_bytes(b'of the other'))(step=1)"
    )

    @save_checkpoint(save_dir, max_checkpoints=1)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"%d" % step)
        if step == 2:
            subprocess.run([sys.executable, "-c", program, str(save_dir)], check=True, timeout=scaled(60))

    for step in (1, 2):
        save(step)
    assert files(save_dir) == ["model_1.pt", "model_2.pt"]
    assert {(i.prefix, i.step): i.state for i in steps(save_dir, verify=True)} == {
        ("checkpoint", 2): "committed",
        ("other", 1): "committed",
    }


def test_prune__vanished_files_are_ignored(save_dir: Path, save: Save, caplog: pytest.LogCaptureFixture) -> None:
    save(1, keep=1)
    (save_dir / "checkpoint_1.pt").unlink()
    save(2, keep=1)
    save(3, keep=1)
    assert [info.step for info in steps(save_dir)] == [3]
    assert caplog.records == []


def test_prune__file_that_cannot_be_removed_is_a_warning(
    save_dir: Path, save: Save, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(1, keep=1)
    real = os.unlink

    def unlink(path: str | Path, **options: int | None) -> None:
        if str(path).endswith("checkpoint_1.pt"):
            raise PermissionError(13, "Permission denied")
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    save(2, keep=1)
    assert "removing checkpoint_1.pt of step 1" in caplog.text
    assert [info.step for info in steps(save_dir)] == [2]


class TestUploads:
    """On a mount with write-back only steps in the bucket count. `uploaded`: those steps."""

    @pytest.fixture
    def uploaded(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        uploaded: set[int] = set()

        def is_durable(paths: Sequence[str], _mounts: object) -> bool:
            data = [os.path.basename(path) for path in paths if path.endswith(".pt")]
            return all(int(name.split("_")[1][:-3]) in uploaded for name in data)

        monkeypatch.setattr(status, "is_durable", is_durable)
        return uploaded

    def test_prune__waits_until_newer_ones_are_in_the_bucket(
        self, save_dir: Path, save: Save, committed: CommittedSteps, uploaded: set[int]
    ) -> None:
        save(1, keep=1)
        save(2, keep=1)
        assert committed(save_dir) == [2, 1]
        uploaded.add(1)
        save(3, keep=1)
        assert committed(save_dir) == [3, 2, 1]
        uploaded.add(2)
        save(4, keep=1)
        assert committed(save_dir) == [4, 3, 2]
        uploaded.update((3, 4, 5))
        save(5, keep=1)
        assert committed(save_dir) == [5]

    def test_prune__never_removes_the_newest_in_the_bucket(
        self, save_dir: Path, save: Save, committed: CommittedSteps, uploaded: set[int]
    ) -> None:
        save(1)
        uploaded.add(1)
        for step in range(2, 10):
            save(step)
        assert committed(save_dir) == list(range(9, 0, -1))

    def test_prune__unknown_durability_removes_nothing(
        self,
        save_dir: Path,
        save: Save,
        committed: CommittedSteps,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(status, "is_durable", lambda *_: None)
        for step in range(5):
            save(step, keep=1)
        assert committed(save_dir) == [4, 3, 2, 1, 0]
        assert caplog.text.count("it is not known whether") == 1
