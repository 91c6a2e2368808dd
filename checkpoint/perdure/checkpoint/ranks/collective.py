"""Steps that several processes take together: if one fails, all fail; and which of them leads on a file system."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.checkpoint.errors import FULL_ERRNOS, CheckpointError
from perdure.checkpoint.ranks.group import Group

T = TypeVar("T")

_ROOM = "there must be room for one step more than are kept: keep fewer"


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a piece of work returned, or the text of its failure; the other processes need either."""

    value: T | None = None
    failure: str | None = None


def capture(work: Callable[[], T]) -> Outcome[T]:
    """Do `work`; its OSError or CheckpointError becomes a failure."""
    try:
        return Outcome(value=work())
    except (OSError, CheckpointError) as error:
        is_full = isinstance(error, OSError) and error.errno in FULL_ERRNOS
        return Outcome(failure=f"{error} ({_ROOM})" if is_full else str(error))


def gather_or_raise(
    group: Group,
    topic: str,
    mine: Outcome[T],
    *,
    doing: str,
    encode: Callable[[T | None], Any],
    decode: Callable[[Any], T],
    advice: str = "The step is not saved; make room or repair the disk, then save again.",
) -> list[T]:
    """What the work of every process returned, in the order of ranks.

    `encode` and `decode`: to plain JSON and back. Raises CheckpointError, in all processes, when one of them failed.
    """
    gathered = group.all_gather(topic, {"value": encode(mine.value), "failure": mine.failure})
    outcomes: list[Outcome[Any]] = [Outcome(**one) for one in gathered]
    failures = [f"rank {rank}: {one.failure}" for rank, one in enumerate(outcomes) if one.failure is not None]
    if failures:
        what = "; ".join(failures) if len(outcomes) > 1 else failures[0].partition(": ")[2]
        raise CheckpointError(f"{doing}: {what}. {advice}".rstrip())
    return [decode(one.value) for one in outcomes]


def raise_if_any_failed(group: Group, topic: str, mine: Outcome[Any], *, doing: str) -> None:
    """Wait until every process has done its work. Raises as `gather_or_raise`."""
    gather_or_raise(group, topic, mine, doing=doing, encode=lambda _: None, decode=lambda _: None)


def is_leader(group: Group, root: str) -> bool:
    """Whether this process has the lowest rank of those that see `root` through the same disk or mount.

    All processes must call it.
    """
    if group.world_size == 1:
        return True
    places = group.all_gather("places", _filesystem_id(root))
    return places.index(places[group.rank]) == group.rank


def _filesystem_id(root: str) -> str:
    while not os.path.exists(root):
        root = os.path.dirname(root)
    return f"{os.uname().nodename} {os.stat(root).st_dev}"
