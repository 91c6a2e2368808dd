"""What a save promises: one call, everything it wrote, committed last or not at all."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import zlib

import pytest

from holdfast.checkpoint import (
    CheckpointError,
    CheckpointUnavailable,
    latest,
    load_checkpoint,
    manifest,
    save_checkpoint,
    steps,
)


def saver(directory, **options):
    """A save function that writes `content` to `model_<step>.pt`, and counts its calls."""
    calls = []

    @save_checkpoint(directory, **options)
    def save(step, content=b"weights"):
        calls.append(step)
        (directory / f"model_{step}.pt").write_bytes(content)
        return f"saved {step}"

    save.calls = calls
    return save


def loader(directory, **options):
    @load_checkpoint(directory, **options)
    def load(step):
        return (directory / f"model_{step}.pt").read_bytes()

    return load


def test_manifest_says_what_who_and_when(save_dir, manifest_of, monkeypatch):
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2026_x_1-0")
    monkeypatch.setenv("HOLDFAST_GENERATION", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert saver(save_dir, metadata={"run": "a", "path": save_dir})(5, b"12345") == "saved 5"
    document = manifest_of(save_dir, 5)
    assert (document["format"], document["prefix"], document["step"]) == (1, "checkpoint", 5)
    (record,) = document["files"]
    assert (record["path"], record["size"]) == ("model_5.pt", 5)
    if record["algorithm"] == "crc32":
        assert record["digest"] == f"{zlib.crc32(b'12345'):08x}"
    created = dt.datetime.strptime(document["created_at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC)
    assert abs((save_dir / "model_5.pt").stat().st_mtime - created.timestamp()) < 60
    who = document["written_by"]
    assert (who["task_id"], who["generation"], who["world_size"]) == ("sky-managed-2026_x_1-0", 3, 8)
    assert (who["host"], who["pid"]) == (os.uname().nodename, os.getpid())
    assert document["versions"]["python"].startswith("3.")
    assert document["metadata"] == {"run": "a", "path": str(save_dir)}


def test_called_once_also_when_it_fails(save_dir, committed):
    calls = []

    @save_checkpoint(save_dir)
    def save(step):
        calls.append(step)
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save(1)
    assert calls == [1]
    assert committed(save_dir) == []
    assert latest(save_dir) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_interruptions_leave_it_uncommitted(save_dir, committed, error):
    saver(save_dir)(1)

    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        raise error

    with pytest.raises(error):
        save(2)
    assert committed(save_dir) == [1]
    assert loader(save_dir)() == b"weights"


def test_nothing_written_is_an_error(save_dir, committed):
    save = saver(save_dir)
    save(1)

    @save_checkpoint(save_dir)
    def forgets(step):
        return False

    with pytest.raises(CheckpointError, match=r"no file under .* was created or changed"):
        forgets(2)
    assert committed(save_dir) == [1]


def test_written_elsewhere_is_an_error(save_dir, tmp_path):
    @save_checkpoint(save_dir)
    def save(step):
        (tmp_path / "elsewhere.pt").write_bytes(b"x")

    with pytest.raises(CheckpointError, match="pass the directory it writes to as save_dir"):
        save(1)


def test_empty_file_is_an_error_unless_it_is_left_out(save_dir, committed):
    def write(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        (save_dir / f"done_{step}").touch()

    with pytest.raises(CheckpointError, match=r"done_1 .* is empty.*ignore=\['done_1'\]"):
        save_checkpoint(save_dir)(write)(1)
    assert committed(save_dir) == []
    save_checkpoint(save_dir, ignore="done_*")(write)(2)
    assert [info.files for info in steps(save_dir)] == [("model_2.pt",)]


def test_failed_commit_is_no_checkpoint_and_no_second_call(save_dir, monkeypatch, committed):
    def full(*_):
        raise OSError(28, "No space left on device")

    save = saver(save_dir)
    save(1)
    monkeypatch.setattr(manifest.os, "replace", full)
    with pytest.raises(CheckpointError, match=r"committing step 2.*No space left"):
        save(2)
    assert save.calls == [1, 2]
    assert committed(save_dir) == [1]
    assert not [name for name in os.listdir(save_dir / ".holdfast") if name.startswith(".tmp")]


def test_failure_after_the_commit_only_warns(save_dir, monkeypatch, caplog):
    save = saver(save_dir, max_checkpoints=1)
    save(1)

    def refuse(root, name):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(manifest, "delete", refuse)
    assert save(2) == "saved 2"
    assert "removing the checkpoint of step 1" in caplog.text
    assert loader(save_dir)() == b"weights"


def test_files_of_other_steps_and_links_are_no_part(save_dir):
    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"x" * step)
        link = save_dir / "latest"
        link.unlink(missing_ok=True)
        link.symlink_to(f"model_{step}.pt")

    for step in (1, 2, 3):
        save(step)
    assert [info.files for info in steps(save_dir, verify=True)] == [(f"model_{step}.pt",) for step in (3, 2, 1)]
    assert {info.state for info in steps(save_dir, verify=True)} == {"committed"}


def test_same_size_written_twice_at_once_is_seen(save_dir):
    """File times move in ticks of some milliseconds; a second save within the tick must not look like nothing."""

    @save_checkpoint(save_dir)
    def save(step, content):
        with open(save_dir / "fixed.pt", "wb") as file:
            file.write(content)

    for step in range(20):
        save(step, b"%04d" % step)
    assert [info.step for info in steps(save_dir, verify=True) if info.state == "committed"] == [19]


def test_same_step_again_replaces_it(save_dir, committed):
    save = saver(save_dir)
    save(4, b"old")
    save(5, b"old")
    save(5, b"new content")
    assert committed(save_dir) == [5, 4]
    assert loader(save_dir)() == b"new content"


def test_same_step_again_that_fails_never_loads_the_torn_file(save_dir):
    saver(save_dir)(4, b"four")
    saver(save_dir)(5, b"five")

    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"FI")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        save(5)
    load = loader(save_dir)
    assert load() == b"four"
    assert load.last_result.skipped == ((5, "model_5.pt has 2 bytes instead of 4"),)


def test_same_step_again_that_fails_before_it_writes_keeps_the_old_one(save_dir):
    saver(save_dir)(5, b"five")

    @save_checkpoint(save_dir)
    def save(step):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        save(5)
    assert loader(save_dir)() == b"five"


def test_broken_manifest_of_a_step_saved_again_does_not_condemn_it(save_dir):
    save = saver(save_dir)
    save(5)
    (path,) = (save_dir / ".holdfast").glob("*-000000000005-*.json")
    path.write_bytes(path.read_bytes()[:40])
    save(5, b"again")
    assert loader(save_dir)() == b"again"


def test_damaged_part_of_a_step_saved_again_does_not_condemn_it(save_dir):
    @save_checkpoint(save_dir)
    def save(step, shards):
        for shard in range(shards):
            (save_dir / f"model_{step}.{shard}").write_bytes(b"%d" % shards)

    @load_checkpoint(save_dir)
    def load(step):
        return (save_dir / f"model_{step}.0").read_bytes()

    save(4, 1)
    save(5, 2)
    (save_dir / "model_5.1").write_bytes(b"?")
    assert load() == b"1"
    save(5, 1)
    assert load() == b"1"
    assert load.last_result.step == 5


def test_growing_log_does_not_spoil_older_steps(save_dir, caplog):
    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        with open(save_dir / "train.log", "a") as log:
            log.write(f"saved {step}\n")

    for step in (1, 2, 3):
        save(step)
    assert [info.state for info in steps(save_dir, verify=True)] == ["committed"] * 3
    assert "overwrote" not in caplog.text


def test_one_name_for_every_step_is_warned_of_once(save_dir, caplog):
    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        (save_dir / "optimizer.pt").write_bytes(b"%d" % step)

    for step in (1, 2, 3):
        save(step)
    warnings = [record.getMessage() for record in caplog.records if "overwrote" in record.getMessage()]
    assert len(warnings) == 1
    assert "optimizer.pt, which is part of step 1" in warnings[0]
    states = {info.step: info.why for info in steps(save_dir, verify=True)}
    assert states[3] == ""
    assert "optimizer.pt differs" in states[2]  # the mixture of two steps is never loaded


def test_touched_file_of_an_older_step_stays_its_own(save_dir):
    """A mount may set a file's time after it was closed; that makes it no part of the next step."""

    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"%d" % step)
        if step == 2:
            os.utime(save_dir / "model_1.pt", ns=(1, 1))

    save(1)
    save(2)
    assert [info.files for info in steps(save_dir)] == [("model_2.pt",), ("model_1.pt",)]


def test_still_being_written_is_an_error(save_dir, monkeypatch):
    from holdfast.checkpoint import digest

    real = digest.of_file

    def while_it_grows(path, *args, **options):
        with open(path, "ab") as file:
            file.write(b"more")
        return real(path, *args, **options)

    monkeypatch.setattr(digest, "of_file", while_it_grows)
    with pytest.raises(CheckpointError, match="still being written"):
        saver(save_dir)(1)


def test_threads_take_turns(save_dir):
    barrier = threading.Barrier(4)

    def work(name):
        @save_checkpoint(save_dir, checkpoint_prefix=name)
        def save(step):
            (save_dir / f"{name}_{step}.pt").write_bytes(name.encode() * 50)

        barrier.wait()
        for step in range(5):
            save(step)

    threads = [threading.Thread(target=work, args=(f"job{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = steps(save_dir, verify=True)
    assert len(found) == 20
    assert all(info.files == (f"{info.prefix}_{info.step}.pt",) and info.state == "committed" for info in found)


def test_save_within_a_save(save_dir, committed):
    inner = saver(save_dir)

    @save_checkpoint(save_dir)
    def outer(step):
        inner(step)
        (save_dir / f"optimizer_{step}.pt").write_bytes(b"o")

    outer(1)
    assert committed(save_dir) == [1]
    assert steps(save_dir)[0].files == ("model_1.pt", "optimizer_1.pt")


def test_directory_is_looked_up_at_each_call(tmp_path, monkeypatch):
    @save_checkpoint("out")
    def save(step):
        with open(f"out/model_{step}.pt", "w") as file:
            file.write("x")

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        save(1)
        assert latest("out") == 1
    target = tmp_path / "c"
    late = save_checkpoint(lambda: target)(lambda step: (target / f"{step}.bin").write_text("x"))
    late(9)
    assert latest(target) == 9


def test_unusable_directory_is_said_before_the_call(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    save = saver(tmp_path / "file")
    with pytest.raises(CheckpointUnavailable, match="can not be used"):
        save(1)
    assert save.calls == []


def test_prefix_of_any_characters(save_dir):
    for prefix in ("exp[1]", "exp*", "a_step_b", "x-1-2", "naïve ✓"):
        saver(save_dir, checkpoint_prefix=prefix)(3, prefix.encode())
        assert loader(save_dir, checkpoint_prefix=prefix)() == prefix.encode()
        assert [info.step for info in steps(save_dir, prefix=prefix)] == [3]


def test_file_names_that_are_no_text(save_dir):
    name = b"caf\xe9_1.pt"

    @save_checkpoint(save_dir)
    def save(step):
        with open(os.path.join(os.fsencode(save_dir), name), "wb") as file:
            file.write(b"x")

    save(1)
    assert steps(save_dir, verify=True)[0].state == "committed"


@pytest.mark.parametrize("count", [0, -1])
def test_keeping_fewer_than_one_is_refused(save_dir, count):
    with pytest.raises(ValueError, match="at least 1"):
        save_checkpoint(save_dir, max_checkpoints=count)


@pytest.mark.parametrize("prefix", ["", "a/b", ".hidden", "nul\0"])
def test_impossible_prefixes_are_refused(save_dir, prefix):
    with pytest.raises(ValueError, match="checkpoint_prefix"):
        save_checkpoint(save_dir, checkpoint_prefix=prefix)
    with pytest.raises(ValueError, match="checkpoint_prefix"):
        load_checkpoint(save_dir, checkpoint_prefix=prefix)


def test_manifest_carries_its_own_checksum(save_dir, manifest_of):
    saver(save_dir, metadata={"loss": 1})(1)
    (path,) = (save_dir / ".holdfast").glob("*.json")
    document = manifest_of(save_dir, 1)
    document["metadata"]["loss"] = 2
    path.write_text(json.dumps(document))
    (info,) = steps(save_dir)
    assert info.state == "damaged"
    assert "does not match its own checksum" in info.why


def test_processes_that_save_the_same_leave_one_manifest(save_dir, committed):
    """As all ranks of a job do when nobody told them not to: the step must never end up without a manifest."""
    both_wrote = os.pipe(), os.pipe()

    def rank(own, other):
        @save_checkpoint(save_dir)
        def save(step):
            (save_dir / f"model_{step}.pt").write_bytes(b"the same on every rank")
            os.write(own[1], b"x")
            os.read(other[0], 1)

        save(1)

    children = []
    for order in (both_wrote, both_wrote[::-1]):
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            try:
                rank(*order)
                status = 0
            finally:
                os._exit(status)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert set(committed(save_dir)) == {1}
    assert loader(save_dir)() == b"the same on every rank"
