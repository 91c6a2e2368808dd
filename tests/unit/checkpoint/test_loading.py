"""What a load promises: the newest whole checkpoint, never a wrong one, and a plain word when there is none."""

from __future__ import annotations

import errno
import json
import os
import pickle
import zlib

import numpy as np
import pytest

from perdure.checkpoint import (
    CheckpointUnavailable,
    LoadResult,
    NoUsableCheckpoint,
    digest,
    latest,
    load_checkpoint,
    loading,
    manifest,
    save_checkpoint,
    steps,
)

SIZE = 300_000


def content_of(step):
    return bytes([step]) * 100 + np.random.default_rng(step).bytes(SIZE)


@pytest.fixture
def save(save_dir):
    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(content_of(step))

    return save


@pytest.fixture
def load(save_dir):
    """Returns the bytes that a training program would see."""

    @load_checkpoint(save_dir)
    def load(step):
        load.calls.append(step)
        return (save_dir / f"model_{step}.pt").read_bytes()

    load.calls = []
    return load


def truncated(data):
    return data[: len(data) * 2 // 3]


def without_its_last_byte(data):
    return data[:-1]


def empty(data):
    return b""


def with_a_zeroed_tail(data):
    return data[: len(data) * 2 // 3] + bytes(len(data) - len(data) * 2 // 3)


def with_a_hole(data):
    return data[:100_000] + bytes(65_536) + data[165_536:]


def with_one_bit_flipped(data):
    return data[:200_000] + bytes([data[200_000] ^ 4]) + data[200_001:]


def with_more_at_the_end(data):
    return data + b"more"


DAMAGES = [
    truncated,
    without_its_last_byte,
    empty,
    with_a_zeroed_tail,
    with_a_hole,
    with_one_bit_flipped,
    with_more_at_the_end,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_gives_way_to_the_one_before(save_dir, save, load, damage, caplog):
    for step in (1, 2):
        save(step)
    path = save_dir / "model_2.pt"
    path.write_bytes(damage(path.read_bytes()))
    assert load() == content_of(1)
    assert load.calls == [1]  # the model was never touched by the broken one
    ((step, reason),) = load.last_result.skipped
    assert step == 2
    assert "model_2.pt" in reason
    assert f"skipping step 2 in {save_dir}" in caplog.text


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_manifest_gives_way_too(save_dir, save, load, damage):
    for step in (1, 2):
        save(step)
    (path,) = (save_dir / ".perdure").glob("*-000000000002-*.json")
    data = path.read_bytes()
    # A bit of every byte in turn: no flip may change what is believed.
    if damage is with_one_bit_flipped:
        variants = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    else:
        variants = [damage(data)]
    for variant in variants:
        path.write_bytes(variant)
        expected = 2 if _means_the_same(variant, data) else 1
        assert load() == content_of(expected), variant


def _means_the_same(variant, data):
    """A changed blank, or an added one, changes nothing."""
    try:
        return json.loads(variant) == json.loads(data)
    except ValueError:
        return False


def test_missing_file_and_missing_manifest(save_dir, save, load):
    for step in (1, 2, 3):
        save(step)
    (save_dir / "model_3.pt").unlink()
    (path,) = (save_dir / ".perdure").glob("*-000000000002-*.json")
    path.unlink()
    assert load() == content_of(1)
    assert load.last_result == LoadResult(1, ((3, "model_3.pt is missing"),), (str(save_dir / "model_1.pt"),))


def test_file_that_became_a_folder(save_dir, save, load):
    for step in (1, 2):
        save(step)
    (save_dir / "model_2.pt").unlink()
    (save_dir / "model_2.pt").mkdir()
    assert load() == content_of(1)
    assert load.last_result.skipped == ((2, "model_2.pt is no longer a file"),)


def test_uncommitted_files_are_never_loaded(save_dir, save, load):
    save(1)
    (save_dir / "model_2.pt").write_bytes(content_of(2))
    assert load() == content_of(1)


def test_all_broken_is_an_error_that_says_why(save_dir, save, load):
    for step in (1, 2):
        save(step)
        (save_dir / f"model_{step}.pt").write_bytes(b"?")
    with pytest.raises(NoUsableCheckpoint) as raised:
        load(0)
    assert load.calls == []
    assert [step for step, _ in raised.value.skipped] == [2, 1]
    assert "step 2: model_2.pt has 1 bytes instead of 300100\n  step 1:" in str(raised.value)
    assert load.last_result is None


@pytest.mark.parametrize("error", [TypeError, KeyError, ValueError, MemoryError, EOFError, pickle.UnpicklingError])
def test_errors_of_the_program_are_raised(save_dir, save, error):
    for step in (1, 2):
        save(step)
    calls = []

    @load_checkpoint(save_dir)
    def load(step):
        calls.append(step)
        raise error("missing key(s) in state_dict")

    with pytest.raises(error, match="missing key"):
        load()
    assert calls == [2]


def test_wrong_file_name_in_the_program_is_raised(save_dir, save):
    for step in (1, 2):
        save(step)

    @load_checkpoint(save_dir)
    def load(step):
        return (save_dir / f"modle_{step}.pt").read_bytes()

    with pytest.raises(FileNotFoundError, match="modle_2"):
        load()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTCONN, errno.ESTALE])
def test_passing_read_errors_are_retried_then_raised(save, load, code, monkeypatch):
    for step in (1, 2):
        save(step)
    real, failures = digest.of_file, [2]

    def flaky(path, *args, **options):
        if failures[0]:
            failures[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(path, *args, **options)

    monkeypatch.setattr(digest, "of_file", flaky)
    assert load() == content_of(2)
    failures[0] = 1000
    with pytest.raises(CheckpointUnavailable, match="nothing was skipped or removed"):
        load()
    failures[0] = 0
    assert load() == content_of(2)


def test_listing_that_fails_is_not_an_empty_directory(save, load, monkeypatch, save_dir):
    save(1)

    def gone(path):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(manifest.os, "listdir", gone)
    for ask in (load, lambda: latest(save_dir), lambda: steps(save_dir)):
        with pytest.raises(CheckpointUnavailable, match="Transport endpoint"):
            ask()


def test_directory_that_may_not_be_read(save, load, monkeypatch):
    save(1)

    def refused(path, *args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(digest, "of_file", refused)
    with pytest.raises(CheckpointUnavailable, match="Permission denied"):
        load()


def test_absent_directory_is_a_first_run(tmp_path):
    load = load_checkpoint(tmp_path / "not" / "there")(lambda step: step)
    assert load() is None
    assert load.last_result == LoadResult(None)
    assert latest(tmp_path / "not" / "there") is None
    assert not (tmp_path / "not").exists()


def test_other_prefixes_are_other_series_and_named(save_dir, caplog):
    @save_checkpoint(save_dir, checkpoint_prefix="a-b")
    def save(step):
        (save_dir / f"x_{step}").write_bytes(b"x")

    save(9)
    for prefix in ("checkpoint", "a", "b", "a-b-000000000009"):
        assert load_checkpoint(save_dir, prefix)(lambda step: step)() is None
        assert latest(save_dir, prefix=prefix) is None
    assert "only with 'a-b'; pass the checkpoint_prefix they were saved with" in caplog.text
    assert load_checkpoint(save_dir, "a-b")(lambda step: step)() == 9


def test_steps_are_numbers_not_words(save, load):
    for step in (9, 10, 100):
        save(step)
    load()
    assert load.calls == [100]


def test_digest_that_can_not_be_made_here_is_said(save_dir, save, load, monkeypatch):
    class Xxh3:
        """What a package that this environment lacks would have made."""

        def __init__(self):
            self.crc = 0

        def update(self, data):
            self.crc = zlib.crc32(data, self.crc)

        def hexdigest(self):
            return f"{self.crc:032x}"

    class Package:
        xxh3_128 = Xxh3

    monkeypatch.setattr(digest, "_xxhash", lambda: Package)
    save(1)
    assert steps(save_dir, verify=True)[0].state == "committed"
    monkeypatch.setattr(digest, "_xxhash", lambda: None)
    with pytest.raises(CheckpointUnavailable, match="pip install xxhash"):
        load()
    assert load.calls == []


def test_xxh3_of_the_real_package(save_dir, save, load, manifest_of):
    xxhash = pytest.importorskip("xxhash")
    save(1)
    (record,) = manifest_of(save_dir, 1)["files"]
    assert (record["algorithm"], record["digest"]) == ("xxh3-128", xxhash.xxh3_128_hexdigest(content_of(1)))
    assert load() == content_of(1)


def test_unfinished_first_save_is_a_first_run(save_dir):
    @save_checkpoint(save_dir)
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        save(10)
    assert load_checkpoint(save_dir)(lambda step: step)() is None


def test_results_are_plain_values():
    assert loading.LoadResult(3).skipped == ()
