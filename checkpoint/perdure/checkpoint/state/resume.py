"""Resuming exactly: the program's random numbers and its position in the data.

    checkpointer.save(step, {"model": model, "random": random_state(), "data": batches})
    ...
    state = checkpointer.load()
    set_random_state(state["random"])
    batches.load_state_dict(state["data"])

With both restored, an interrupted run produces the same numbers, to the last bit, as an uninterrupted one.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from perdure.checkpoint.errors import CheckpointError

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


def random_state() -> dict[str, Any]:
    """The state of the global random number generators: Python's, and NumPy's and PyTorch's (CPU and every GPU) if they
    are imported. A Checkpointer can save it."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    state: dict[str, Any] = {"rank": _rank(), "python": random.getstate()}
    if numpy is not None:
        name, key, *rest = numpy.random.get_state()
        state["numpy"] = (name, key.tolist(), *rest)  # a list: torch.load refuses NumPy arrays by default
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore every generator to the state that `random_state` returned.

    Raises CheckpointError, before anything is changed, when the state is from another rank (saved by rank 0 for all
    instead of with `sharded=True`), from another number of GPUs, or of a library that this program has not imported.
    """
    if state["rank"] != _rank():
        raise CheckpointError(
            f"this is the random state of rank {state['rank']}, and this process is rank {_rank()}: all ranks would "
            "draw the same numbers. Save every rank's own state with Checkpointer(..., sharded=True)."
        )
    for name in ("numpy", "torch"):
        if name in state and name not in sys.modules:
            raise CheckpointError(f"the state holds {name}'s random numbers; import {name} before restoring it")
    torch = sys.modules.get("torch")
    if "cuda" in state and torch is not None and len(state["cuda"]) != torch.cuda.device_count():
        raise CheckpointError(
            f"the state holds the random numbers of {len(state['cuda'])} GPUs, this machine has "
            f"{torch.cuda.device_count()}; restore the rest without it, and expect other random numbers"
        )
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])


class EpochIterable(Protocol[T_co]):
    """Anything that can be iterated once per epoch, in an order that depends only on the random numbers."""

    def __iter__(self) -> Iterator[T_co]: ...


class Resumable(Generic[T]):
    """A data loader that can resume in the middle of an epoch.

    Wraps any loader whose order depends only on the global random numbers (a PyTorch DataLoader with `shuffle=True`, a
    list …). To resume, it repeats the beginning of the epoch with the random numbers that it began with, and skips the
    batches that were seen. A loader that stores its position itself, such as torchdata's StatefulDataLoader, skips them
    without repeating anything. The caller restores the random numbers drawn since then (`set_random_state`, before or
    after `load_state_dict`).
    """

    STATE_KEYS = frozenset({"epoch", "batches", "began", "loader"})

    def __init__(self, loader: EpochIterable[T]) -> None:
        self._loader = loader
        self.epoch = 0  # epochs completed
        self.batches = 0  # batches of this epoch that were returned
        self._began: dict[str, Any] | None = None  # the random state at the beginning of the epoch
        self._position: Any = None  # what the loader itself stored; None if it does not
        self._resumes = False

    def __len__(self) -> int:
        """Batches in a whole epoch, if the loader has a length."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        items = self._resume_epoch() if self._resumes else self._start_epoch()
        for item in items:
            self.batches += 1
            yield item
        self.epoch += 1
        self.batches, self._began = 0, None

    def _start_epoch(self) -> Iterator[T]:
        self.batches, self._began = 0, random_state()
        return iter(self._loader)

    def _resume_epoch(self) -> Iterator[T]:
        """An iterator positioned after the batches that were seen."""
        self._resumes = False
        if self._began is None:
            return self._start_epoch()
        now = random_state()
        set_random_state(self._began)
        if self._position is not None:
            self._loader.load_state_dict(self._position)  # type: ignore[attr-defined]
        items = iter(self._loader)
        for seen in range(0 if self._position is not None else self.batches):
            if next(items, self) is self:
                raise CheckpointError(
                    f"the data has only {seen} batches, of which {self.batches} were seen: it is not the data that the "
                    "checkpoint was saved with"
                )
        set_random_state(now)
        return items

    def state_dict(self) -> dict[str, Any]:
        is_stateful = self._began is not None and _stores_position(self._loader)
        position = self._loader.state_dict() if is_stateful else None  # type: ignore[attr-defined]
        return {"epoch": self.epoch, "batches": self.batches, "began": self._began, "loader": position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state` was taken. Raises CheckpointError if this loader cannot use its loader's position."""
        self.epoch, self.batches, self._began = state["epoch"], state["batches"], state["began"]
        self._position = state.get("loader")
        if self._position is not None and not _stores_position(self._loader):
            raise CheckpointError(
                f"the checkpoint holds the position of a loader that stores it, and {type(self._loader).__qualname__} "
                "does not: use the same loader as before"
            )
        self._resumes = True


def _stores_position(loader: Any) -> bool:
    """Whether a loader has a state of its own. Accelerate's has the methods, whether its inner loader has a state or
    not."""
    inner = getattr(loader, "base_dataloader", loader)
    return all(callable(getattr(inner, name, None)) for name in ("state_dict", "load_state_dict"))


def _rank() -> int:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else 0
