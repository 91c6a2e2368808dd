"""What the tests of the checkpoint library share: a stand-in for a framework, and directories of their own."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from perdure.checkpoint import errors, load_checkpoint, memory, notice, save_checkpoint

MANIFESTS = ".perdure"


class Torch:
    """`save` and `load` with torch's signatures: an object in a file, by pickle, not atomic, not flushed."""

    @staticmethod
    def save(value, path):
        with open(path, "wb") as file:
            pickle.dump(value, file)

    @staticmethod
    def load(path):
        with open(path, "rb") as file:
            return pickle.load(file)


class Model:
    """A model or an optimizer, as far as a checkpoint cares."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = dict(state)


@pytest.fixture
def torch():
    return Torch


@pytest.fixture
def new_model():
    return Model


@pytest.fixture(autouse=True)
def _own_process(monkeypatch):
    """Each test begins as a process of its own would: nothing remembered, no agent, no waiting between retries."""
    for name in ("PERDURE_RUN_DIR", "PERDURE_GENERATION", "SKYPILOT_TASK_ID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(errors, "RETRY_DELAYS_S", (0.0, 0.0))
    monkeypatch.setattr(memory, "_memories", {})
    monkeypatch.setattr(notice, "_seen", notice._Seen())


@pytest.fixture
def restart(monkeypatch):
    """Forget what this process knows, as a restarted one does."""
    return lambda: monkeypatch.setattr(memory, "_memories", {})


@pytest.fixture
def save_dir(tmp_path, monkeypatch) -> Path:
    """`checkpoints` in a working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    return directory


@pytest.fixture
def run_dir(tmp_path, monkeypatch) -> Path:
    """The directory that an agent would share with the workload."""
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv("PERDURE_RUN_DIR", str(directory))
    return directory


@pytest.fixture
def committed():
    """Steps that have a manifest, newest first, by a directory's listing alone."""

    def list_steps(directory, prefix="checkpoint"):
        names = [name for name in os.listdir(Path(directory, MANIFESTS)) if name.endswith(".json")]
        return sorted((int(name.split("-")[-2]) for name in names if name.startswith(prefix + "-")), reverse=True)

    return list_steps


@pytest.fixture
def manifest_of():
    """The content of the one manifest of a step."""

    def read(directory, step):
        (path,) = Path(directory, MANIFESTS).glob(f"*-{step:012d}-*.json")
        return json.loads(path.read_text())

    return read


@pytest.fixture
def saver():
    """`saver(directory, **options)`: a save function that writes `content` to `model_<step>.pt`; `calls`: its steps."""

    def make(directory, **options):
        calls = []

        @save_checkpoint(directory, **options)
        def save(step, content=b"weights"):
            calls.append(step)
            (directory / f"model_{step}.pt").write_bytes(content)
            return f"saved {step}"

        save.calls = calls
        return save

    return make


@pytest.fixture
def loader():
    """`loader(directory, **options)`: a load function that returns what is in `model_<step>.pt`."""

    def make(directory, **options):
        @load_checkpoint(directory, **options)
        def load(step):
            return (directory / f"model_{step}.pt").read_bytes()

        return load

    return make
