"""A load returns the newest whole checkpoint, never a wrong one, and a clear error when there is none."""

from __future__ import annotations

import errno
import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import pytest

from perdure.checkpoint import (
    CheckpointUnavailable,
    LoadResult,
    NoUsableCheckpoint,
    latest,
    load_checkpoint,
    save_checkpoint,
    steps,
)
from perdure.checkpoint.decorators import LoadFunction
from perdure.checkpoint.format import digest, manifest
from perdure.checkpoint.load import function_load
from unit.checkpoint.training_program import ManifestOf

Damage = Callable[[bytes], bytes]
Save = Callable[[int], None]


class RecordedLoad(LoadFunction[bytes], Protocol):
    calls: list[int]  # the steps that it was called with


SIZE = 300_000


def make_content(step: int) -> bytes:
    return bytes([step]) * 100 + np.random.default_rng(step).bytes(SIZE)


@pytest.fixture
def save(save_dir: Path) -> Save:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(make_content(step))

    return save


@pytest.fixture
def load(save_dir: Path) -> RecordedLoad:
    """Returns the bytes that a training program would see."""

    calls: list[int] = []

    @load_checkpoint(save_dir)
    def load(step: int) -> bytes:
        calls.append(step)
        return (save_dir / f"model_{step}.pt").read_bytes()

    recorded = cast("RecordedLoad", load)
    recorded.calls = calls
    return recorded


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def without_its_last_byte(data: bytes) -> bytes:
    return data[:-1]


def empty(data: bytes) -> bytes:
    return b""


def with_a_zeroed_tail(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3] + bytes(len(data) - len(data) * 2 // 3)


def with_a_hole(data: bytes) -> bytes:
    return data[:100_000] + bytes(65_536) + data[165_536:]


def with_one_bit_flipped(data: bytes) -> bytes:
    return data[:200_000] + bytes([data[200_000] ^ 4]) + data[200_001:]


def with_more_at_the_end(data: bytes) -> bytes:
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
def test_load__falls_back_past_a_damaged_checkpoint(
    save_dir: Path, save: Save, load: RecordedLoad, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(step)
    path = save_dir / "model_2.pt"
    path.write_bytes(damage(path.read_bytes()))
    assert load() == make_content(1)
    assert load.calls == [1]  # the model was never touched by the broken one
    ((step, reason),) = load.last_result.skipped
    assert step == 2
    assert "model_2.pt" in reason
    assert f"skipping step 2 in {save_dir}" in caplog.text


@pytest.mark.parametrize("damage", DAMAGES)
def test_load__falls_back_past_a_damaged_manifest(
    save_dir: Path, save: Save, load: RecordedLoad, damage: Damage
) -> None:
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
        assert load() == make_content(expected), variant


def _means_the_same(variant: bytes, data: bytes) -> bool:
    """A changed blank, or an added one, changes nothing."""
    try:
        return bool(json.loads(variant) == json.loads(data))
    except ValueError:
        return False


def test_load__missing_file_and_missing_manifest(save_dir: Path, save: Save, load: RecordedLoad) -> None:
    for step in (1, 2, 3):
        save(step)
    (save_dir / "model_3.pt").unlink()
    (path,) = (save_dir / ".perdure").glob("*-000000000002-*.json")
    path.unlink()
    assert load() == make_content(1)
    assert load.last_result == LoadResult(1, ((3, "model_3.pt is missing"),), (str(save_dir / "model_1.pt"),))


def test_load__file_that_became_a_folder(save_dir: Path, save: Save, load: RecordedLoad) -> None:
    for step in (1, 2):
        save(step)
    (save_dir / "model_2.pt").unlink()
    (save_dir / "model_2.pt").mkdir()
    assert load() == make_content(1)
    assert load.last_result.skipped == ((2, "model_2.pt is no longer a file"),)


def test_load__ignores_uncommitted_files(save_dir: Path, save: Save, load: RecordedLoad) -> None:
    save(1)
    (save_dir / "model_2.pt").write_bytes(make_content(2))
    assert load() == make_content(1)


def test_load__all_damaged_raises_with_the_reasons(save_dir: Path, save: Save, load: RecordedLoad) -> None:
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
def test_load__raises_errors_of_the_program(save_dir: Path, save: Save, error: type[Exception]) -> None:
    for step in (1, 2):
        save(step)
    calls = []

    @load_checkpoint(save_dir)
    def load(step: int) -> None:
        calls.append(step)
        raise error("missing key(s) in state_dict")

    with pytest.raises(error, match="missing key"):
        load()
    assert calls == [2]


def test_load__raises_a_wrong_file_name_of_the_program(save_dir: Path, save: Save) -> None:
    for step in (1, 2):
        save(step)

    @load_checkpoint(save_dir)
    def load(step: int) -> bytes:
        return (save_dir / f"modle_{step}.pt").read_bytes()

    with pytest.raises(FileNotFoundError, match="modle_2"):
        load()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTCONN, errno.ESTALE])
def test_load__retries_transient_errors_then_raises(
    save: Save, load: RecordedLoad, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(step)
    real, failures = digest.hash_file, [2]

    def flaky(path: str, *args: Any, **options: Any) -> object:
        if failures[0]:
            failures[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(path, *args, **options)

    monkeypatch.setattr(digest, "hash_file", flaky)
    assert load() == make_content(2)
    failures[0] = 1000
    with pytest.raises(CheckpointUnavailable, match="nothing was skipped or removed"):
        load()
    failures[0] = 0
    assert load() == make_content(2)


def test_load__failed_listing_is_no_empty_directory(
    save: Save, load: RecordedLoad, monkeypatch: pytest.MonkeyPatch, save_dir: Path
) -> None:
    save(1)

    def gone(path: str) -> NoReturn:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(manifest.os, "listdir", gone)
    for ask in (load, lambda: latest(save_dir), lambda: steps(save_dir)):
        with pytest.raises(CheckpointUnavailable, match="Transport endpoint"):
            ask()


def test_load__directory_without_permission(save: Save, load: RecordedLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    save(1)

    def refused(path: str, *args: Any, **options: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(digest, "hash_file", refused)
    with pytest.raises(CheckpointUnavailable, match="Permission denied"):
        load()


def test_load__absent_directory_is_a_first_run(tmp_path: Path) -> None:
    load = load_checkpoint(tmp_path / "not" / "there")(lambda step: step)
    assert load() is None
    assert load.last_result == LoadResult(None)
    assert latest(tmp_path / "not" / "there") is None
    assert not (tmp_path / "not").exists()


def test_load__names_other_prefixes(save_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    @save_checkpoint(save_dir, checkpoint_prefix="a-b")
    def save(step: int) -> None:
        (save_dir / f"x_{step}").write_bytes(b"x")

    save(9)
    for prefix in ("checkpoint", "a", "b", "a-b-000000000009"):
        assert load_checkpoint(save_dir, prefix)(lambda step: step)() is None
        assert latest(save_dir, prefix=prefix) is None
    assert "only with 'a-b'; pass the checkpoint_prefix they were saved with" in caplog.text
    assert load_checkpoint(save_dir, "a-b")(lambda step: step)() == 9


def test_load__orders_steps_as_numbers(save: Save, load: RecordedLoad) -> None:
    for step in (9, 10, 100):
        save(step)
    load()
    assert load.calls == [100]


def test_load__reports_a_missing_digest_package(
    save_dir: Path, save: Save, load: RecordedLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Xxh3:
        """What a package that this environment lacks would have made."""

        def __init__(self) -> None:
            self.crc = 0

        def update(self, data: bytes) -> None:
            self.crc = zlib.crc32(data, self.crc)

        def hexdigest(self) -> str:
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


def test_load__verifies_xxh3_digests(save_dir: Path, save: Save, load: RecordedLoad, manifest_of: ManifestOf) -> None:
    xxhash = pytest.importorskip("xxhash")
    save(1)
    (record,) = manifest_of(save_dir, 1)["files"]
    assert (record["algorithm"], record["digest"]) == ("xxh3-128", xxhash.xxh3_128_hexdigest(make_content(1)))
    assert load() == make_content(1)


def test_load__unfinished_first_save_is_a_first_run(save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        save(10)
    assert load_checkpoint(save_dir)(lambda step: step)() is None


def test_load_result__is_a_plain_value() -> None:
    assert function_load.LoadResult(3).skipped == ()
