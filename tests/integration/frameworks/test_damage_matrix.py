"""Every kind of damage to every kind of checkpoint: the damaged one is never loaded, always the older one, with a
reason.

The loaders of most formats accept some of these damages (most load a flipped bit silently); here they are never called.
One process per framework writes all formats; the damage is done to the largest file of the newest step.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.checkpoint import Checkpointer, load_checkpoint
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.load import directory_cache
from support.helpers.timing import scaled

HOLE = 64 * 1024


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "two thirds": lambda data: data[: len(data) * 2 // 3],
    "last byte lost": lambda data: data[:-1],
    "empty": lambda data: b"",
    "last third zeroed": lambda data: data[: len(data) * 2 // 3] + bytes(len(data) - len(data) * 2 // 3),
    "hole": lambda data: data[: len(data) // 2] + bytes(HOLE) + data[len(data) // 2 + HOLE :],
    "one bit": flipped,
}

WRITE_TORCH = """
    import sys, torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from perdure.checkpoint import Checkpointer, save_checkpoint
    from perdure.checkpoint.folders import Folders
    root = sys.argv[1]
    def state(step):
        return {"w": torch.full((300_000,), float(step)) + torch.arange(300_000.0)}
    def decorated(name, write):
        @save_checkpoint(f"{root}/{name}")
        def save(step):
            write(state(step), f"{root}/{name}/model_{step}.pt")
        return save
    saves = [
        decorated("zip", torch.save),
        decorated("legacy", lambda s, path: torch.save(s, path, _use_new_zipfile_serialization=False)),
        decorated("safetensors", save_file),
    ]
    folders, own = Folders(f"{root}/dcp"), Checkpointer(f"{root}/own-torch")
    for step in (1, 2):
        for save in saves:
            save(step)
        with folders.saving(step) as path:
            dcp.save(state(step), checkpoint_id=path, no_dist=True)
        own.save(step, state(step))
    own.close()
"""
WRITE_JAX = """
    import os, sys, jax.numpy as jnp
    import orbax.checkpoint as ocp
    from perdure.checkpoint.folders import Folders
    folders = Folders(f"{sys.argv[1]}/orbax")
    for step in (1, 2):
        with folders.saving(step) as path:
            with ocp.StandardCheckpointer() as saver:
                saver.save(os.path.join(path, "state"), {"w": jnp.arange(300_000.0) * 0.7 + step})
"""
WRITE_PLAIN = """
    import os, sys, numpy as np
    from perdure.checkpoint import Checkpointer
    from perdure.checkpoint.folders import Folders
    root = sys.argv[1]
    folders, own = Folders(f"{root}/raw"), Checkpointer(f"{root}/own")
    for step in (1, 2):
        with folders.saving(step) as path:
            os.mkdir(os.path.join(path, "part"))
            with open(os.path.join(path, "part", "bytes"), "wb") as file:
                file.write(np.random.default_rng(step).bytes(600_000))
        own.save(step, {"w": np.random.default_rng(step).random(100_000)})
    own.close()
"""
WRITERS = {
    "plain": (WRITE_PLAIN, ("numpy",), ("own", "raw")),
    "torch": (WRITE_TORCH, ("torch", "safetensors"), ("zip", "legacy", "safetensors", "dcp", "own-torch")),
    "jax": (WRITE_JAX, ("jax", "orbax"), ("orbax",)),
}
CASES = [
    pytest.param(writer, name, marks=[] if writer == "plain" else [pytest.mark.long, pytest.mark.timeout(600)])
    for writer, (_, _, names) in WRITERS.items()
    for name in names
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with the checkpoints of a writer; each writer runs once."""
    done: dict[str, Path] = {}

    def written(writer: str) -> Path:
        program, needed, _ = WRITERS[writer]
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"{', '.join(missing)} is not installed")
        if writer not in done:
            folder = tmp_path_factory.mktemp(writer)
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(program), str(folder)], check=True, timeout=scaled(500)
            )
            done[writer] = folder
        return done[writer]

    return written


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("writer", "name"), CASES)
def test_load__never_loads_damage(
    written: Callable[[str], Path],
    writer: str,
    name: str,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(written(writer) / name, tmp_path / name)
    root = tmp_path / name
    monkeypatch.setattr(directory_cache, "_caches", {})
    assert loaded(root, name) == (2, [])
    victim = max(
        (path for path in root.rglob("*") if is_of_newest(path.relative_to(root))), key=lambda one: one.stat().st_size
    )
    content = victim.read_bytes()
    spoilt = DAMAGES[damage](content)
    assert spoilt != content
    victim.write_bytes(spoilt)
    step, skipped = loaded(root, name)
    assert step == 1
    ((refused, reason),) = skipped
    assert refused == 2
    assert victim.name in reason


def is_of_newest(path: Path) -> bool:
    top = path.parts[0]
    return top.startswith(("model_2", "checkpoint-2")) or "-000000000002-" in top


def loaded(root: Path, name: str) -> tuple[int | None, list[tuple[int, str]]]:
    """(step, skipped steps) of a load through the part of the library that reads this kind."""
    if name.startswith("own"):
        checkpointer = Checkpointer(root)
        checkpointer.load()
        assert checkpointer.last_result is not None
        return checkpointer.last_result.step, list(checkpointer.last_result.skipped)
    if name in ("dcp", "orbax", "raw"):
        newest = Folders(root).newest()
        assert newest is not None
        return newest.step, list(newest.skipped)

    @load_checkpoint(root)
    def load(step: int) -> None:
        assert (root / f"model_{step}.pt").exists()

    load()
    assert load.last_result is not None
    return load.last_result.step, list(load.last_result.skipped)
