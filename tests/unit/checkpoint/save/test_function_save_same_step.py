"""Saves that interact with others: of the same step, of earlier steps, from threads and processes, and nested ones."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from perdure.checkpoint import load_checkpoint, save_checkpoint, steps
from unit.checkpoint.training_program import CommittedSteps, Loader, Saver


def test_save__excludes_links_and_files_of_other_steps(save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"x" * step)
        link = save_dir / "latest"
        link.unlink(missing_ok=True)
        link.symlink_to(f"model_{step}.pt")

    for step in (1, 2, 3):
        save(step)
    assert [info.files for info in steps(save_dir, verify=True)] == [(f"model_{step}.pt",) for step in (3, 2, 1)]
    assert {info.state for info in steps(save_dir, verify=True)} == {"committed"}


def test_save__detects_a_rewrite_of_the_same_size(save_dir: Path) -> None:
    """File times move in ticks of some milliseconds; a second save within the tick must not look like nothing."""

    @save_checkpoint(save_dir)
    def save(step: int, content: bytes) -> None:
        with open(save_dir / "fixed.pt", "wb") as file:
            file.write(content)

    for step in range(20):
        save(step, b"%04d" % step)
    assert [info.step for info in steps(save_dir, verify=True) if info.state == "committed"] == [19]


def test_save__same_step_again_replaces_it(
    save_dir: Path, committed: CommittedSteps, saver: Saver, loader: Loader
) -> None:
    save = saver(save_dir)
    save(4, b"old")
    save(5, b"old")
    save(5, b"new content")
    assert committed(save_dir) == [5, 4]
    assert loader(save_dir)() == b"new content"


def test_save__failed_rewrite_never_loads_the_torn_file(save_dir: Path, saver: Saver, loader: Loader) -> None:
    saver(save_dir)(4, b"four")
    saver(save_dir)(5, b"five")

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"FI")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        save(5)
    load = loader(save_dir)
    assert load() == b"four"
    assert load.last_result.skipped == ((5, "model_5.pt has 2 bytes instead of 4"),)


def test_save__rewrite_that_fails_before_writing_keeps_the_old_one(
    save_dir: Path, saver: Saver, loader: Loader
) -> None:
    saver(save_dir)(5, b"five")

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        save(5)
    assert loader(save_dir)() == b"five"


def test_save__damaged_manifest_of_the_same_step_is_removed(save_dir: Path, saver: Saver, loader: Loader) -> None:
    save = saver(save_dir)
    save(5)
    (path,) = (save_dir / ".perdure").glob("*-000000000005-*.json")
    path.write_bytes(path.read_bytes()[:40])
    save(5, b"again")
    assert loader(save_dir)() == b"again"


def test_save__damaged_part_of_the_same_step_is_replaced(save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int, shards: int) -> None:
        for shard in range(shards):
            (save_dir / f"model_{step}.{shard}").write_bytes(b"%d" % shards)

    @load_checkpoint(save_dir)
    def load(step: int) -> bytes:
        return (save_dir / f"model_{step}.0").read_bytes()

    save(4, 1)
    save(5, 2)
    (save_dir / "model_5.1").write_bytes(b"?")
    assert load() == b"1"
    save(5, 1)
    assert load() == b"1"
    assert load.last_result.step == 5


def test_save__growing_log_does_not_damage_older_steps(save_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        with open(save_dir / "train.log", "a") as log:
            log.write(f"saved {step}\n")

    for step in (1, 2, 3):
        save(step)
    assert [info.state for info in steps(save_dir, verify=True)] == ["committed"] * 3
    assert "overwrote" not in caplog.text


def test_save__warns_once_about_one_name_for_all_steps(save_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        (save_dir / "optimizer.pt").write_bytes(b"%d" % step)

    for step in (1, 2, 3):
        save(step)
    warnings = [record.getMessage() for record in caplog.records if "overwrote" in record.getMessage()]
    assert len(warnings) == 1
    assert "optimizer.pt, which is part of step 1" in warnings[0]
    states = {info.step: info.reason for info in steps(save_dir, verify=True)}
    assert states[3] == ""
    assert "optimizer.pt differs" in states[2]  # the mixture of two steps is never loaded


def test_save__touched_file_stays_with_its_step(save_dir: Path) -> None:
    """A mount may set a file's time after it was closed; that makes it no part of the next step."""

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"%d" % step)
        if step == 2:
            os.utime(save_dir / "model_1.pt", ns=(1, 1))

    save(1)
    save(2)
    assert [info.files for info in steps(save_dir)] == [("model_2.pt",), ("model_1.pt",)]


def test_save__threads_are_serialized(save_dir: Path) -> None:
    barrier = threading.Barrier(4)

    def work(name: str) -> None:
        @save_checkpoint(save_dir, checkpoint_prefix=name)
        def save(step: int) -> None:
            (save_dir / f"{name}_{step}.pt").write_bytes(name.encode() * 50)

        barrier.wait()
        for step in range(5):
            save(step)

    threads = [threading.Thread(target=work, args=(f"job{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saved = steps(save_dir, verify=True)
    assert len(saved) == 20
    assert all(info.files == (f"{info.prefix}_{info.step}.pt",) and info.state == "committed" for info in saved)


def test_save__within_a_save(save_dir: Path, committed: CommittedSteps, saver: Saver) -> None:
    inner = saver(save_dir)

    @save_checkpoint(save_dir)
    def outer(step: int) -> None:
        inner(step)
        (save_dir / f"optimizer_{step}.pt").write_bytes(b"o")

    outer(1)
    assert committed(save_dir) == [1]
    assert steps(save_dir)[0].files == ("model_1.pt", "optimizer_1.pt")


def test_save__processes_saving_the_same_leave_one_manifest(
    save_dir: Path, committed: CommittedSteps, loader: Loader
) -> None:
    """All ranks of a job may do this by mistake: the step must never end up without a manifest."""
    both_wrote = os.pipe(), os.pipe()

    def rank(own: tuple[int, int], other: tuple[int, int]) -> None:
        @save_checkpoint(save_dir)
        def save(step: int) -> None:
            (save_dir / f"model_{step}.pt").write_bytes(b"the same on every rank")
            os.write(own[1], b"x")
            os.read(other[0], 1)

        save(1)

    children = []
    for number, order in enumerate((both_wrote, both_wrote[::-1])):
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            os.environ["RANK"] = str(number)
            try:
                rank(*order)
                status = 0
            finally:
                os._exit(status)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert set(committed(save_dir)) == {1}
    assert loader(save_dir)() == b"the same on every rank"
