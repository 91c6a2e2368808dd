"""Fixtures of the checkpoint library's tests: save and load functions, and temporary directories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.checkpoint import errors, load_checkpoint, preemption, save_checkpoint
from perdure.checkpoint.decorators import LoadFunction
from perdure.checkpoint.load import directory_cache
from unit.checkpoint.training_program import (
    CommittedSteps,
    Loader,
    ManifestOf,
    Model,
    RecordedSave,
    Restart,
    Saver,
    Torch,
)

MANIFESTS = ".perdure"


@pytest.fixture
def torch() -> type[Torch]:
    return Torch


@pytest.fixture
def new_model() -> type[Model]:
    return Model


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins like a new process: empty caches, no agent, no delays between retries."""
    for name in ("PERDURE_RUN_DIR", "PERDURE_GENERATION", "SKYPILOT_TASK_ID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(errors, "RETRY_DELAYS_S", (0.0, 0.0))
    monkeypatch.setattr(directory_cache, "_caches", {})
    monkeypatch.setattr(preemption, "_cache", preemption._NoticeCache())


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Restart:
    """Empty the caches, as a restart does."""
    return lambda: monkeypatch.setattr(directory_cache, "_caches", {})


@pytest.fixture
def save_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`checkpoints` in a temporary working directory."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    return directory


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that an agent would share with the workload."""
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv("PERDURE_RUN_DIR", str(directory))
    return directory


@pytest.fixture
def committed() -> CommittedSteps:
    """Steps that have a manifest, newest first, by a directory's listing alone."""

    def list_steps(directory: Path, prefix: str = "checkpoint") -> list[int]:
        names = [name for name in os.listdir(Path(directory, MANIFESTS)) if name.endswith(".json")]
        return sorted((int(name.split("-")[-2]) for name in names if name.startswith(prefix + "-")), reverse=True)

    return list_steps


@pytest.fixture
def manifest_of() -> ManifestOf:
    """The content of the one manifest of a step."""

    def read(directory: Path, step: int) -> dict[str, Any]:
        (path,) = Path(directory, MANIFESTS).glob(f"*-{step:012d}-*.json")
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    return read


@pytest.fixture
def saver() -> Saver:
    """`saver(directory, **options)`: a save function that writes `content` to `model_<step>.pt`; `calls`: its steps."""

    def make(directory: Path, **options: Any) -> RecordedSave:
        calls: list[int] = []

        @save_checkpoint(directory, **options)
        def save(step: int, content: bytes = b"weights") -> str:
            calls.append(step)
            (directory / f"model_{step}.pt").write_bytes(content)
            return f"saved {step}"

        recorded = cast("RecordedSave", save)
        recorded.calls = calls
        return recorded

    return make


@pytest.fixture
def loader() -> Loader:
    """`loader(directory, **options)`: a load function that returns what is in `model_<step>.pt`."""

    def make(directory: Path, **options: Any) -> LoadFunction[bytes]:
        @load_checkpoint(directory, **options)
        def load(step: int) -> bytes:
            return (directory / f"model_{step}.pt").read_bytes()

        return load

    return make
