"""What several processes do together: if one fails all hear of it, and who stands where."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.group import Group


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """What `work` returned (plain JSON), or its failure in words: the other processes have to hear of either."""
    try:
        return {"value": work()}
    except (OSError, CheckpointError) as error:
        return {"failure": str(error)}


def all_of(group: Group, topic: str, mine: dict[str, Any], *, doing: str) -> list[Any]:
    """What every process's attempt returned. Raises CheckpointError, in all of them, when one failed."""
    said = group.share(topic, mine)
    failures = [f"rank {rank}: {one['failure']}" for rank, one in enumerate(said) if "failure" in one]
    if failures:
        what = "; ".join(failures) if len(said) > 1 else failures[0].partition(": ")[2]
        raise CheckpointError(f"{doing}: {what}. The step is not saved; make room or repair the disk, then save again.")
    return [one["value"] for one in said]


def leads(group: Group, root: str) -> bool:
    """Whether this process is the first of those that see `root` through the same disk or mount. All must call it."""
    if group.world_size == 1:
        return True
    places = group.share("places", _place(root))
    return places.index(places[group.rank]) == group.rank


def _place(root: str) -> str:
    while not os.path.exists(root):
        root = os.path.dirname(root)
    return f"{os.uname().nodename} {os.stat(root).st_dev}"
