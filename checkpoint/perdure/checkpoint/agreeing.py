"""Which step all processes load: the newest that each of them can verify its part of.

Every process looks for the newest step that it can use, then all say which; those that found a newer one than the
oldest named look again from there, until all name the same.
"""

from __future__ import annotations

import logging
from typing import Any

from perdure.checkpoint import checkpoints, journal, manifest, marks, memory, samples, second_look, shards
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.group import Group
from perdure.checkpoint.loading import LoadResult, refused_all
from perdure.checkpoint.state import streams

logger = logging.getLogger("perdure.checkpoint")

_OTHERS = "another process can not use it"


def agreed_load(
    root: str, prefix: str, group: Group, rank: int, world_size: int, verify: str = samples.FULL
) -> tuple[LoadResult, Any]:
    """Load part `rank` of `world_size` of the newest step that every process can; returns what happened and the state.
    `verify`: how closely it is looked at (`samples`).

    Raises, in every process, NoUsableCheckpoint when there are checkpoints and all were refused by some, and
    CheckpointUnavailable when some see no checkpoints where others do.
    """
    second_look.refresh(root)
    search = _Search(root, prefix, rank, world_size, verify)
    bound: int | None = None
    for attempt in range(1_000_000):
        search.look(bound)
        said = group.share(f"load-{prefix}-{attempt}", search.answer())
        if failures := [one["failure"] for one in said if one["failure"]]:
            raise search.failure or CheckpointError(failures[0])
        steps = [one["step"] for one in said]
        if len(set(steps)) == 1:
            return search.result(said)
        if None in steps:
            _refuse_disagreement(root, said, search.skipped)
        bound = min(step for step in steps if step is not None)
    raise AssertionError("each round goes back by one step at least")


def _refuse_disagreement(root: str, said: list[Any], skipped: list[tuple[int, str]]) -> None:
    blind = [rank for rank, one in enumerate(said) if one["step"] is None]
    if all(not said[rank]["skipped"] for rank in blind):
        raise CheckpointUnavailable(
            f"rank {blind[0]} sees no checkpoints in {root}, others do: its listing may be old or its mount missing. "
            "Nothing was loaded; start again when every node sees the same directory."
        )
    raise NoUsableCheckpoint(
        f"no checkpoint in {root} can be read by all {len(said)} processes (not by rank {blind[0]})", skipped
    )


class _Search:
    """One process's search, newest first; what it found last is `found` and `state`."""

    def __init__(self, root: str, prefix: str, rank: int, world_size: int, verify: str) -> None:
        self._root, self._prefix, self._rank, self._world_size = root, prefix, rank, world_size
        self.skipped: list[tuple[int, str]] = []
        self.failure: Exception | None = None
        self.found: Checkpoint | None = None
        self.state: Any = None
        self._believe = True
        self._verify = verify

    def look(self, bound: int | None) -> None:
        """Find the newest usable step that is not above `bound`; what was found before stands if it is not."""
        if self.failure is not None or (self.found is not None and (bound is None or self.found.step <= bound)):
            return
        if self.found is not None:
            self.skipped.append((self.found.step, _OTHERS))
        self.found = self.state = None
        try:
            self._search(bound)
            if self.found is None and self._believe and self.skipped:
                # Marks spare reading in vain; where nothing else is left, they are not believed.
                self._believe = False
                self.skipped = [one for one in self.skipped if one[1] == _OTHERS]
                self._search(bound)
        except CheckpointError as error:
            self.failure = error

    def _search(self, bound: int | None) -> None:
        seen = {step for step, _ in self.skipped}
        known = memory.of(self._root)
        for candidate in checkpoints.newest_first(self._root, self._prefix, cache=known.manifests):
            if candidate.step not in seen and (bound is None or candidate.step <= bound) and self._use(candidate):
                return

    def _use(self, candidate: Checkpoint) -> bool:
        said = marks.standing(candidate)
        closely = samples.FULL if said else self._verify  # only a look at every byte takes a mark back
        try:
            if said and self._believe:
                raise streams.Damaged(said)
            try:
                self.state = self._read(candidate, closely)
            except streams.Damaged:
                again = second_look.take(candidate)
                if again is None:
                    raise
                candidate = again
                self.state = self._read(candidate, closely)
        except streams.Damaged as damage:
            if said is None or not self._believe:
                marks.mark(candidate, str(damage))
            logger.warning("skipping step %d in %s: %s", candidate.step, self._root, damage)
            self.skipped.append((candidate.step, str(damage)))
            return False
        if closely == samples.FULL:
            marks.unmark(candidate)
        self.found = candidate
        return True

    def _read(self, candidate: Checkpoint, verify: str) -> Any:
        parts = shards.of(candidate)
        if len(parts) != self._world_size:
            raise CheckpointError(
                f"step {candidate.step} in {self._root} was saved in {len(parts)} parts, and {self._world_size} are "
                "wanted now: run with as many processes as before, or save with torch.distributed.checkpoint through "
                "perdure.checkpoint.adapters.dcp, which can redistribute"
            )
        return shards.read(self._root, parts[self._rank], verify)

    def answer(self) -> dict[str, Any]:
        """What the other processes have to know."""
        return {
            "step": self.found.step if self.found else None,
            "skipped": len(self.skipped),
            "failure": str(self.failure) if self.failure else "",
        }

    def result(self, said: list[Any]) -> tuple[LoadResult, Any]:
        """The outcome that all have agreed on. Raises NoUsableCheckpoint."""
        if self.found is None:
            if any(one["skipped"] for one in said):
                raise NoUsableCheckpoint(refused_all(self._root, self._prefix, self.skipped), self.skipped)
            logger.info("nothing saved yet in %s under the prefix %r", self._root, self._prefix)
            return LoadResult(None), None
        step = self.found.step
        journal.note(step, journal.LOADED, manifest.path_of(self._root, self.found.manifests[-1].name))
        logger.info("loaded step %d from %s", step, self._root)
        return LoadResult(step, tuple(self.skipped), tuple(self.found.all_paths)), self.state
