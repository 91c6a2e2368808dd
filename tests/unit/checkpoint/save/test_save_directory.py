"""One save lists the manifests once, again right before it deletes, and reads the mounts once."""

from __future__ import annotations

import builtins
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import Checkpointer, save_checkpoint, steps
from perdure.checkpoint.durability import mount_table
from perdure.checkpoint.folders import Folders
from unit.checkpoint.training_program import Restart

Save = Callable[[int], object]


@pytest.fixture
def directory(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on a mount without write-back, so that a file is in the bucket when it is closed."""
    directory = tmp_path / "mnt" / "run"
    directory.mkdir(parents=True)
    row = {"path": str(directory.parent), "mode": "MOUNT", "cache_dir": None, "rc_socket": None}
    (run_dir / "mounts.json").write_text(json.dumps([row]))
    monkeypatch.setattr(mount_table, "source_at", lambda *_: "store:bucket")
    return directory


@pytest.fixture
def accesses(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each directory was listed, by its path in the bucket, and the two tables of mounts were read."""
    counter: Counter[str] = Counter()
    tables = {str(run_dir / "mounts.json"): "mounts.json", "/proc/self/mountinfo": "mountinfo"}

    def counting(real: Callable[..., Any], name_of: Callable[[str], str | None]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            name = name_of(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else None
            if name is not None:
                counter[name] += 1
            return real(path, *args, **options)

        return call

    def in_bucket(path: str) -> str | None:
        top = str(tmp_path / "mnt" / "run")
        return os.path.relpath(path, top) if path.startswith(top) else None

    monkeypatch.setattr(os, "listdir", counting(os.listdir, in_bucket))
    monkeypatch.setattr(os, "scandir", counting(os.scandir, in_bucket))
    monkeypatch.setattr(builtins, "open", counting(builtins.open, tables.get))
    return counter


def by_function(directory: Path) -> Iterator[Save]:
    @save_checkpoint(directory, max_checkpoints=2)
    def save(step: int) -> None:
        (directory / f"model_{step}.pt").write_bytes(b"weights")

    yield save


def by_checkpointer(directory: Path) -> Iterator[Save]:
    with Checkpointer(directory, keep=2) as checkpointer:

        def save(step: int) -> None:
            checkpointer.save(step, {"step": step})
            checkpointer.wait()

        yield save


def by_folders(directory: Path) -> Iterator[Save]:
    folders = Folders(directory, keep=2)

    def save(step: int) -> None:
        with folders.saving(step) as path:
            Path(path, "weights").write_bytes(b"weights")

    yield save


@pytest.mark.parametrize(
    ("make", "first", "later", "listings"),
    [
        # A function's files are compared before and after the call.
        (by_function, {".": 2}, {".": 2}, 1),
        # A Checkpointer looks once for unfinished parts of its predecessors.
        (by_checkpointer, {".": 1}, {}, 1),
        # The folder itself is read, and the manifests once before and once after the user has written it.
        (by_folders, {"checkpoint-{step}": 1}, {"checkpoint-{step}": 1}, 2),
    ],
)
def test_save_directory__lists_again_only_before_it_deletes(
    make: Callable[[Path], Iterator[Save]],
    first: dict[str, int],
    later: dict[str, int],
    listings: int,
    directory: Path,
    accesses: Counter[str],
) -> None:
    for save in make(directory):
        for step in range(1, 6):
            accesses.clear()
            save(step)
            # From step 3 on each save removes an older checkpoint, and lists again before the manifest and the files.
            common = {".perdure": listings + (2 if step > 2 else 0), "mounts.json": 1, "mountinfo": 1}
            data = {name.format(step=step): count for name, count in (first if step == 1 else later).items()}
            assert dict(accesses) == {**common, **data}
    assert [info.step for info in steps(directory)] == [5, 4]


def test_save_directory__a_restart_reads_each_manifest_with_one_mount_lookup(
    directory: Path, accesses: Counter[str], restart: Restart
) -> None:
    for save in by_function(directory):
        for step in (1, 2):
            save(step)
        restart()
        accesses.clear()
        save(3)
    assert accesses["mounts.json"] == 1
    assert accesses[".perdure"] == 3, "one, and two because a checkpoint was removed"
    assert [info.step for info in steps(directory)] == [3, 2]


def test_save_directory__nested_save_is_seen_by_the_outer_one(directory: Path) -> None:
    @save_checkpoint(directory, max_checkpoints=1, checkpoint_prefix="inner")
    def inner(step: int) -> None:
        (directory / f"shared_{step}.pt").write_bytes(b"shared")

    @save_checkpoint(directory, max_checkpoints=1, checkpoint_prefix="outer")
    def outer(step: int, inner_step: int) -> None:
        inner(inner_step)
        (directory / f"shared_{inner_step}.pt").write_bytes(b"SHARED")
        (directory / f"model_{step}.pt").write_bytes(b"weights")

    for step in (1, 2):
        outer(step, 7)
    assert (directory / "shared_7.pt").exists()
    assert [(info.prefix, info.step) for info in steps(directory)] == [("inner", 7), ("outer", 2)]
