"""A stand-in for a training program: a framework, a model, and functions that save and load a file per step."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from perdure.checkpoint.decorators import LoadFunction


class Torch:
    """`save` and `load` with torch's signatures: an object in a file, by pickle, not atomic, not flushed."""

    @staticmethod
    def save(value: Any, path: str | Path) -> None:
        with open(path, "wb") as file:
            pickle.dump(value, file)

    @staticmethod
    def load(path: str | Path) -> Any:
        with open(path, "rb") as file:
            return pickle.load(file)


class Model:
    """A model or an optimizer: an object with a state."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


class RecordedSave(Protocol):
    """A decorated save function that writes `content` to `model_<step>.pt`."""

    calls: list[int]  # the steps that it was called with

    def __call__(self, step: int, content: bytes = b"weights") -> str: ...


class CommittedSteps(Protocol):
    """Returns the steps that have a manifest, newest first."""

    def __call__(self, directory: Path, prefix: str = "checkpoint") -> list[int]: ...


ManifestOf = Callable[[Path, int], dict[str, Any]]  # (directory, step)
Saver = Callable[..., RecordedSave]  # (directory, **options of save_checkpoint)
Loader = Callable[..., LoadFunction[bytes]]  # (directory, **options of load_checkpoint)
Restart = Callable[[], None]
