"""The processes that save and load together, and how they tell each other what each has.

`share` is the one thing that they need: everybody says something about a topic and hears what everybody said. Through
torch.distributed where it is initialised, else through small files in the directory of the checkpoints, which works
wherever all processes see that directory, however late. Where each has a mount of its own over one bucket, each has its
mount upload what it says at once, and look at the bucket again while it waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, Protocol

from perdure.checkpoint import durability, second_look
from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.snapshot import OWN_DIR

TIMEOUT_S = 600.0
_POLL_FIRST_S, _POLL_LAST_S = 0.005, 1.0
_FOLDER = "ranks"


class PeersMissing(CheckpointUnavailable):
    """Other processes did not answer in time: nothing was agreed on, and nothing was committed."""


class Group(Protocol):
    """Processes with ranks 0…world_size-1. All of them call `share` with the same topics in the same order."""

    rank: int
    world_size: int

    def share(self, topic: str, mine: Any) -> list[Any]:
        """What every rank said on `topic`, in the order of ranks; plain JSON. Raises PeersMissing."""
        ...


class Alone:
    """A program of one process."""

    rank = 0
    world_size = 1

    def share(self, topic: str, mine: Any) -> list[Any]:  # noqa: ARG002 - nobody to tell it to
        return [mine]


class TorchGroup:
    """The processes of torch.distributed, over a gloo group of their own, so that a save in the background never mixes
    with the collectives of training. All ranks construct it at the same point."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        dist = sys.modules["torch"].distributed
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._dist: Any = dist
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def share(self, topic: str, mine: Any) -> list[Any]:
        said: list[Any] = [None] * self.world_size
        try:
            self._dist.all_gather_object(said, (topic, mine), group=self._group)
        except RuntimeError as error:
            raise PeersMissing(f"agreeing on {topic!r} with {self.world_size} processes: {error}") from error
        topics = {one for one, _ in said}
        if len(topics) > 1:
            raise PeersMissing(f"the processes do different things: {', '.join(sorted(topics))}")
        return [what for _, what in said]


class FilesGroup:
    """Processes that share a directory. What a process says replaces what it said before on the same topic.

    Files of processes that died must not count as answers: rank 0 opens each topic under a number of its own, an answer
    counts only if it repeats that number, and what was agreed only if it repeats the answer's own number.
    """

    def __init__(self, root: str, rank: int, world_size: int, timeout_s: float = TIMEOUT_S) -> None:
        self.rank, self.world_size = rank, world_size
        attempt = os.environ.get("PERDURE_GENERATION", "0")  # one that was given up may still be talking
        self._folder = os.path.join(root, OWN_DIR, _FOLDER, attempt)
        self._timeout_s = timeout_s
        self._over: str | None = None

    def share(self, topic: str, mine: Any) -> list[Any]:
        os.makedirs(self._folder, exist_ok=True)
        said = self._lead(topic, mine) if self.rank == 0 else self._follow(topic, mine)
        # Who speaks of this topic has done with the one before, so nobody reads the files of that any more.
        if self._over is not None and self._over != topic:
            self._forget(self._over)
        self._over = topic
        return said

    def _lead(self, topic: str, mine: Any) -> list[Any]:
        number = _number()
        self._say(topic, "call", {"number": number})
        heard: dict[int, Any] = {}
        for _ in self._patience():
            for rank in range(1, self.world_size):
                answer = self._heard(topic, str(rank))
                if answer is not None and answer["call"] == number:
                    heard[rank] = answer
            if len(heard) == self.world_size - 1:
                answers = {str(rank): answer["number"] for rank, answer in heard.items()}
                said = [mine, *(heard[rank]["said"] for rank in range(1, self.world_size))]
                self._say(topic, "agreed", {"answers": answers, "said": said})
                return said
        missing = sorted(set(range(1, self.world_size)) - heard.keys())
        raise PeersMissing(f"agreeing on {topic!r}: no word of rank {', '.join(map(str, missing))}")

    def _follow(self, topic: str, mine: Any) -> list[Any]:
        called, number = None, _number()
        for _ in self._patience():
            call = self._heard(topic, "call")
            if call is not None and call["number"] != called:
                called = call["number"]
                self._say(topic, str(self.rank), {"call": called, "number": number, "said": mine})
            agreed = self._heard(topic, "agreed")
            if agreed is not None and agreed["answers"].get(str(self.rank)) == number:
                said: list[Any] = agreed["said"]
                return said
        raise PeersMissing(f"agreeing on {topic!r}: no answer of rank 0")

    def _patience(self) -> Any:
        ends_at, pause_s = time.monotonic() + self._timeout_s, _POLL_FIRST_S
        while time.monotonic() < ends_at:
            yield
            time.sleep(pause_s)
            second_look.refresh_folder(self._folder)
            pause_s = min(_POLL_LAST_S, pause_s * 1.5)

    def _path(self, topic: str, what: str) -> str:
        return os.path.join(self._folder, f"{topic}.{what}.json")

    def _say(self, topic: str, what: str, content: Any) -> None:
        path = self._path(topic, what)
        temporary = f"{path}.tmp-{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(temporary, path)
        durability.upload_now([path])

    def _heard(self, topic: str, what: str) -> Any:
        with contextlib.suppress(OSError, ValueError), open(self._path(topic, what), encoding="utf-8") as file:
            return json.load(file)
        return None

    def _forget(self, topic: str) -> None:
        own = ("call", "agreed") if self.rank == 0 else (str(self.rank),)
        for what in own:
            with contextlib.suppress(OSError):
                os.unlink(self._path(topic, what))


def _number() -> str:
    return os.urandom(8).hex()


def group_of(root: str) -> Group:
    """The group that this process belongs to: torch.distributed's, else the one that RANK and WORLD_SIZE tell of."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return TorchGroup() if torch.distributed.get_world_size() > 1 else Alone()
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdigit() and world_size.isdigit() and int(world_size) > 1:
        return FilesGroup(root, int(rank), int(world_size))
    return Alone()
