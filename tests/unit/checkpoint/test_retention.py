"""Old checkpoints go when newer ones are safe, and nothing else ever goes."""

from __future__ import annotations

import os

import pytest

from perdure.checkpoint import durability, load_checkpoint, save_checkpoint, steps


@pytest.fixture
def save(save_dir):
    """Saves a step under a prefix, keeping `keep`."""

    def save(step, *, keep=2, prefix="checkpoint", content=b"x"):
        @save_checkpoint(save_dir, max_checkpoints=keep, checkpoint_prefix=prefix)
        def write(step):
            (save_dir / f"{prefix}_{step}.pt").write_bytes(content)

        write(step)

    return save


def files(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".perdure")


def test_newest_stay_with_their_files(save_dir, save, committed):
    for step in (1, 2, 30, 100):
        save(step)
    assert committed(save_dir) == [100, 30]
    assert files(save_dir) == ["checkpoint_100.pt", "checkpoint_30.pt"]


def test_none_keeps_all(save_dir, save, committed):
    for step in range(12):
        save(step, keep=None)
    assert committed(save_dir) == list(range(11, -1, -1))


def test_fewer_wanted_later_removes_the_rest_at_once(save_dir, save, committed):
    for step in range(6):
        save(step, keep=None)
    save(6, keep=1)
    assert committed(save_dir) == [6]
    assert files(save_dir) == ["checkpoint_6.pt"]


def test_one_just_saved_stays_also_at_a_lower_step(save_dir, save, committed):
    for step in (100, 200):
        save(step)
    save(5)
    assert committed(save_dir) == [200, 100, 5]
    save(6)
    assert committed(save_dir) == [200, 100, 6]
    assert "checkpoint_6.pt" in files(save_dir)


def test_other_prefixes_are_counted_apart(save_dir, save, committed):
    for step in (1, 2, 3):
        save(step, prefix="a")
        save(step, prefix="b", keep=1)
    assert committed(save_dir, "a") == [3, 2]
    assert committed(save_dir, "b") == [3]
    assert files(save_dir) == ["a_2.pt", "a_3.pt", "b_3.pt"]


def test_refused_ones_do_not_push_out_the_good_one(save_dir, save, committed, restart):
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


def test_truncated_ones_do_not_count_either(save_dir, save, committed):
    for step in (1, 2, 3):
        save(step, keep=3, content=b"good")
    for step in (2, 3):
        (save_dir / f"checkpoint_{step}.pt").write_bytes(b"")
    save(4, keep=2)
    assert committed(save_dir) == [4, 3, 2, 1]


def test_damaged_manifests_neither_count_nor_go(save_dir, save, committed, restart):
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


def test_shared_and_foreign_files_stay(save_dir, committed):
    (save_dir / "model_1.notes").write_text("mine")

    @save_checkpoint(save_dir, max_checkpoints=1)
    def save(step):
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


def test_file_of_another_prefix_is_shared(save_dir):
    def write(step):
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


def test_vanished_files_are_no_problem(save_dir, save, caplog):
    save(1, keep=1)
    (save_dir / "checkpoint_1.pt").unlink()
    save(2, keep=1)
    save(3, keep=1)
    assert [info.step for info in steps(save_dir)] == [3]
    assert caplog.records == []


def test_files_that_can_not_be_removed_are_a_warning(save_dir, save, monkeypatch, caplog):
    save(1, keep=1)
    real = os.unlink

    def unlink(path, **options):
        if str(path).endswith("checkpoint_1.pt"):
            raise PermissionError(13, "Permission denied")
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    save(2, keep=1)
    assert "removing checkpoint_1.pt of step 1" in caplog.text
    assert [info.step for info in steps(save_dir)] == [2]


class TestUploads:
    """On a mount with write-back the bucket decides. `uploaded`: the steps that it has."""

    @pytest.fixture
    def uploaded(self, monkeypatch):
        uploaded = set()

        def is_durable(paths):
            data = [os.path.basename(path) for path in paths if path.endswith(".pt")]
            return all(int(name.split("_")[1][:-3]) in uploaded for name in data)

        monkeypatch.setattr(durability, "is_durable", is_durable)
        return uploaded

    def test_nothing_goes_before_the_newer_one_is_in_the_bucket(self, save_dir, save, committed, uploaded):
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

    def test_newest_in_the_bucket_is_never_removed(self, save_dir, save, committed, uploaded):
        save(1)
        uploaded.add(1)
        for step in range(2, 10):
            save(step)
        assert committed(save_dir) == list(range(9, 0, -1))

    def test_unknown_removes_nothing_and_says_so_once(self, save_dir, save, committed, monkeypatch, caplog):
        monkeypatch.setattr(durability, "is_durable", lambda paths: None)
        for step in range(5):
            save(step, keep=1)
        assert committed(save_dir) == [4, 3, 2, 1, 0]
        assert caplog.text.count("can not tell whether") == 1
