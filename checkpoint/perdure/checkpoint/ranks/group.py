"""The processes that save and load together, and how they exchange what each of them has.

Their one operation is `all_gather`: each process contributes a value on a topic and receives the values of all. It goes
through torch.distributed if that is initialised. Otherwise it goes through small files in the directory of the
checkpoints, which works wherever all processes see that directory, however late. If each process has its own mount of
one bucket, it makes that mount upload each file at once, and refresh its listing while the process waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

from perdure.checkpoint.durability import status
from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.format.file_changes import OWN_DIR
from perdure.checkpoint.load import mount_refresh

TIMEOUT_S = 600.0
_POLL_INITIAL_S, _POLL_MAX_S = 0.005, 1.0
_FOLDER = "ranks"


class PeersMissing(CheckpointUnavailable):
    """Other processes did not respond in time: nothing was agreed on, and nothing was committed."""


class Group(Protocol):
    """Processes with ranks 0…world_size-1. All of them call `all_gather` with the same topics in the same order."""

    rank: int
    world_size: int

    def all_gather(self, topic: str, mine: Any) -> list[Any]:
        """The values of all processes on `topic`, in the order of ranks; plain JSON. Raises PeersMissing."""
        ...


class SingleProcess:
    """A program of one process."""

    rank = 0
    world_size = 1

    def all_gather(self, topic: str, mine: Any) -> list[Any]:  # noqa: ARG002 - there are no others
        return [mine]


class TorchGroup:
    """The processes of torch.distributed, or those of one of its process groups. They use a gloo group of their own, so
    that a save in the background does not mix with the collectives of training. All members construct it at the same
    point.

    Raises ValueError if this process is no member of `process_group`.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, process_group: Any = None) -> None:
        dist = sys.modules["torch"].distributed
        self.rank, self.world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.rank < 0:
            raise ValueError("this process is not a member of process_group: only its members save and load with it")
        self._dist: Any = dist
        self.process_group: Any = dist.new_group(
            ranks=None if process_group is None else dist.get_process_group_ranks(process_group),
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=process_group is not None,
        )

    def all_gather(self, topic: str, mine: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world_size
        try:
            self._dist.all_gather_object(gathered, (topic, mine), group=self.process_group)
        except RuntimeError as error:
            raise PeersMissing(f"agreeing on {topic!r} with {self.world_size} processes: {error}") from error
        topics = {one for one, _ in gathered}
        if len(topics) > 1:
            raise PeersMissing(f"the processes do different things: {', '.join(sorted(topics))}")
        return [value for _, value in gathered]


class FilesGroup:
    """Processes that share a directory. A process's message replaces its earlier one on the same topic.

    Files of processes that died must not count as replies. Rank 0 opens each topic with a round ID. A reply counts only
    if it repeats the round ID, and the result counts for a process only if it repeats the ID of that process's reply.
    """

    def __init__(self, root: str, rank: int, world_size: int, timeout_s: float = TIMEOUT_S) -> None:
        self.rank, self.world_size = rank, world_size
        generation = os.environ.get("PERDURE_GENERATION", "0")  # an attempt that was given up may still be running
        self._folder = os.path.join(root, OWN_DIR, _FOLDER, generation)
        self._timeout_s = timeout_s
        self._last_topic: str | None = None

    def all_gather(self, topic: str, mine: Any) -> list[Any]:
        os.makedirs(self._folder, exist_ok=True)
        values = self._lead(topic, mine) if self.rank == 0 else self._follow(topic, mine)
        # All processes that have reached this topic are done with the last one, so its files are not read any more.
        if self._last_topic is not None and self._last_topic != topic:
            self._delete(self._last_topic)
        self._last_topic = topic
        return values

    def _lead(self, topic: str, mine: Any) -> list[Any]:
        round_id = _new_id()
        self._send(topic, "call", {"round": round_id})
        replies: dict[int, Any] = {}
        for _ in self._poll():
            for rank in range(1, self.world_size):
                reply = self._receive(topic, str(rank))
                if reply is not None and reply["round"] == round_id:
                    replies[rank] = reply
            if len(replies) == self.world_size - 1:
                reply_ids = {str(rank): reply["id"] for rank, reply in replies.items()}
                values = [mine, *(replies[rank]["value"] for rank in range(1, self.world_size))]
                self._send(topic, "result", {"replies": reply_ids, "values": values})
                return values
        missing = sorted(set(range(1, self.world_size)) - replies.keys())
        raise PeersMissing(f"agreeing on {topic!r}: no reply from rank {', '.join(map(str, missing))}")

    def _follow(self, topic: str, mine: Any) -> list[Any]:
        round_id, reply_id = None, _new_id()
        for _ in self._poll():
            call = self._receive(topic, "call")
            if call is not None and call["round"] != round_id:
                round_id = call["round"]
                self._send(topic, str(self.rank), {"round": round_id, "id": reply_id, "value": mine})
            result = self._receive(topic, "result")
            if result is not None and result["replies"].get(str(self.rank)) == reply_id:
                values: list[Any] = result["values"]
                return values
        raise PeersMissing(f"agreeing on {topic!r}: no result from rank 0")

    def _poll(self) -> Iterator[None]:
        """Yields until the timeout, with growing pauses."""
        ends_at, pause_s = time.monotonic() + self._timeout_s, _POLL_INITIAL_S
        while time.monotonic() < ends_at:
            yield
            time.sleep(pause_s)
            mount_refresh.refresh_folder(self._folder)
            pause_s = min(_POLL_MAX_S, pause_s * 1.5)

    def _path(self, topic: str, kind: str) -> str:
        return os.path.join(self._folder, f"{topic}.{kind}.json")

    def _send(self, topic: str, kind: str, message: Any) -> None:
        path = self._path(topic, kind)
        temporary = f"{path}.tmp-{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(message, file)
        os.replace(temporary, path)
        status.upload_now([path])

    def _receive(self, topic: str, kind: str) -> Any:
        with contextlib.suppress(OSError, ValueError), open(self._path(topic, kind), encoding="utf-8") as file:
            return json.load(file)
        return None

    def _delete(self, topic: str) -> None:
        """Remove the files of `topic` that this process wrote."""
        for kind in ("call", "result") if self.rank == 0 else (str(self.rank),):
            with contextlib.suppress(OSError):
                os.unlink(self._path(topic, kind))


def _new_id() -> str:
    return os.urandom(8).hex()


def detect_group(root: str) -> Group:
    """The group that this process belongs to: torch.distributed's, else jax.distributed's, else the one given by RANK
    and WORLD_SIZE."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return TorchGroup() if torch.distributed.get_world_size() > 1 else SingleProcess()
    jax = sys.modules.get("jax")
    if jax is not None and getattr(jax.distributed, "is_initialized", bool)():  # older ones do not tell
        index, count = jax.process_index(), jax.process_count()
        return FilesGroup(root, index, count) if count > 1 else SingleProcess()
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdigit() and world_size.isdigit() and int(world_size) > 1:
        return FilesGroup(root, int(rank), int(world_size))
    return SingleProcess()
