"""A directory of files that were saved without this library: the newest whole one is loaded."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import LoadResult, NoUsableCheckpoint, load_checkpoint, save_checkpoint
from perdure.checkpoint.decorators import LoadFunction


@pytest.fixture
def load(save_dir: Path) -> LoadFunction[dict[str, Any]]:
    @load_checkpoint(save_dir)
    def load(step: int) -> Any:
        with open(save_dir / f"model_{step}.pkl", "rb") as file:
            return pickle.load(file)

    return load


@pytest.fixture(autouse=True)
def _saved(save_dir: Path) -> None:
    for step in (5, 20, 100):
        (save_dir / f"model_{step}.pkl").write_bytes(pickle.dumps({"step": step, "pad": list(range(1000))}))


def test_foreign_files__newest_first(load: LoadFunction[dict[str, Any]], save_dir: Path) -> None:
    assert load()["step"] == 100
    assert load.last_result == LoadResult(100, (), (str(save_dir / "model_100.pkl"),))


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


@pytest.mark.parametrize("damage", [truncated, lambda data: data[:-1], lambda data: b"", lambda data: bytes(len(data))])
def test_foreign_files__error_about_a_damaged_file_falls_back(
    load: LoadFunction[dict[str, Any]],
    save_dir: Path,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = save_dir / "model_100.pkl"
    path.write_bytes(damage(path.read_bytes()))
    assert load()["step"] == 20
    assert [step for step, _ in load.last_result.skipped] == [100]
    warning, unverified = (record for record in caplog.records if record.levelname == "WARNING")
    assert "step 20" in unverified.getMessage()
    assert "was loaded without being verified" in unverified.getMessage()
    # With the traceback of the loader, unless the loader was not called.
    assert bool(warning.exc_info) == (path.stat().st_size > 0)


def test_foreign_files__pipe_is_not_opened(load: LoadFunction[dict[str, Any]], save_dir: Path) -> None:
    (save_dir / "model_100.pkl").unlink()
    os.mkfifo(save_dir / "model_100.pkl")
    assert load()["step"] == 20


def test_foreign_files__damaged_archive_falls_back(save_dir: Path) -> None:
    for step in (100, 200):
        np.savez(save_dir / f"arrays_{step}.npz", weights=np.arange(1000))
    path = save_dir / "arrays_200.npz"
    path.write_bytes(truncated(path.read_bytes()))

    @load_checkpoint(save_dir)
    def load(step: int) -> np.ndarray[Any, Any]:
        with np.load(save_dir / f"arrays_{step}.npz") as archive:
            weights: np.ndarray[Any, Any] = archive["weights"]
            return weights

    assert (load() == np.arange(1000)).all()
    assert load.last_result.step == 100


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("PytorchStreamReader failed reading zip archive: failed finding central directory"),
        RuntimeError("unexpected EOF, expected 4096 more bytes. The file might be corrupted."),
        OSError("Unable to synchronously open file (truncated file: eof = 5)"),
        type("SafetensorError", (Exception,), {})("Error while deserializing header: InvalidHeaderLength"),
        zipfile.BadZipFile("File is not a zip file"),
    ],
)
def test_foreign_files__damage_errors_of_frameworks(save_dir: Path, error: Exception) -> None:
    @load_checkpoint(save_dir)
    def load(step: int) -> int:
        if step == 100:
            raise error
        return step

    assert load() == 20


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory"),
        pickle.UnpicklingError("Weights only load failed. invalid load key"),
        KeyError("optimizer"),
        PermissionError(13, "Permission denied"),
        TypeError("load_state_dict() missing 1 required positional argument"),
    ],
)
def test_foreign_files__errors_of_the_program_are_raised(save_dir: Path, error: Exception) -> None:
    @load_checkpoint(save_dir)
    def load(step: int) -> None:
        raise error

    with pytest.raises(type(error)):
        load()


def test_foreign_files__all_damaged(load: LoadFunction[dict[str, Any]], save_dir: Path) -> None:
    for path in save_dir.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(NoUsableCheckpoint, match="none of the 3 checkpoints"):
        load()


def test_foreign_files__ignore_other_names(load: LoadFunction[dict[str, Any]], save_dir: Path) -> None:
    for name in ("r_step_20_ema.pt", "best.pt", "model_900.pkl.tmp", ".hidden_999.pt", "notes_v1.5", "model_.pkl"):
        (save_dir / name).write_bytes(b"?")
    assert load()["step"] == 100


def test_foreign_files__number_of_another_file_is_no_checkpoint(
    load: LoadFunction[dict[str, Any]], save_dir: Path
) -> None:
    (save_dir / "log_777.txt").write_bytes(b"?")
    assert load()["step"] == 100
    assert "model_777.pkl is not part of it" in load.last_result.skipped[0][1]


def test_foreign_files__include_folders(save_dir: Path) -> None:
    (save_dir / "checkpoint-1000").mkdir()
    assert load_checkpoint(save_dir)(lambda step: step)() == 1000


def test_foreign_files__prefer_names_with_the_prefix(save_dir: Path) -> None:
    (save_dir / "exp1_step_7.pt").write_bytes(b"x")
    (save_dir / "exp10_step_9.pt").write_bytes(b"x")
    assert load_checkpoint(save_dir, "exp1")(lambda step: step)() == 7


def test_foreign_files__never_preferred_to_committed_ones(save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pkl").write_bytes(pickle.dumps(step))

    save(50)
    assert load_checkpoint(save_dir)(lambda step: step)() == 50


def test_foreign_files__exclude_an_unfinished_first_save(load: LoadFunction[dict[str, Any]], save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pkl").write_bytes(b"half")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        save(110)
    assert load()["step"] == 100
    assert load.last_result.skipped == ()
