"""Which step all processes load: the newest one of which each of them can verify its part.

Each process searches for the newest step that it can use. Then all processes exchange their steps. Those whose step is
newer than the oldest one search again from the oldest one, until all processes have the same step.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.durability import journal
from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.format import manifest, part_names, sampling
from perdure.checkpoint.load import (
    checkpoint,
    damage_marks,
    directory_cache,
    lost_manifests,
    mount_refresh,
    shards,
    verify,
)
from perdure.checkpoint.load.checkpoint import Checkpoint
from perdure.checkpoint.load.loader import LoadResult, all_refused_message
from perdure.checkpoint.ranks.group import Group
from perdure.checkpoint.state import streams

logger = logging.getLogger("perdure.checkpoint")

_UNUSABLE_ELSEWHERE = "another process cannot use it"


@dataclass(frozen=True)
class _Report:
    """What one process found, as the others receive it."""

    step: int | None  # the newest step that it can use
    skipped: int  # how many it refused
    failure: str  # why it cannot search any further; empty if it can


def load_agreed_step(
    root: str, prefix: str, group: Group, rank: int, world_size: int, verify: str = sampling.FULL
) -> tuple[LoadResult, Any]:
    """Load part `rank` of `world_size` of the newest step that every process can use; returns the result and the state.

    `verify`: a mode of `sampling`.

    Raises, in every process, NoUsableCheckpoint when there are checkpoints and each was refused by a process, and
    CheckpointUnavailable when some see no checkpoints where others do.
    """
    mount_refresh.refresh(root)
    search = _Search(root, prefix, rank, world_size, verify)
    bound: int | None = None
    for number in itertools.count():
        search.advance(bound)
        gathered = group.all_gather(f"load-{prefix}-{number}", vars(search.report()))
        reports = [_Report(**one) for one in gathered]
        if failures := [one.failure for one in reports if one.failure]:
            raise search.failure or CheckpointError(failures[0])
        steps = [one.step for one in reports]
        if len(set(steps)) == 1:
            break
        if None in steps:
            _raise_disagreement(root, reports, search.skipped)
        bound = min(step for step in steps if step is not None)
    return search.result(reports)


def _raise_disagreement(root: str, reports: Sequence[_Report], skipped: list[tuple[int, str]]) -> None:
    without = [rank for rank, one in enumerate(reports) if one.step is None]
    if all(not reports[rank].skipped for rank in without):
        raise CheckpointUnavailable(
            f"rank {without[0]} sees no checkpoints in {root}, others do: its listing may be stale or its mount "
            "missing. Nothing was loaded; start again when every node sees the same directory."
        )
    raise NoUsableCheckpoint(
        f"no checkpoint in {root} can be read by all {len(reports)} processes (not by rank {without[0]})", skipped
    )


class _Search:
    """One process's search, newest first. `candidate` and `state` are the last usable checkpoint and its content."""

    def __init__(self, root: str, prefix: str, rank: int, world_size: int, verify: str) -> None:
        self._root, self._prefix, self._rank, self._world_size = root, prefix, rank, world_size
        self.skipped: list[tuple[int, str]] = []
        self.failure: Exception | None = None
        self.candidate: Checkpoint | None = None
        self.state: Any = None
        self._trust_marks = True
        self._verify = verify

    def advance(self, bound: int | None) -> None:
        """Find the newest usable step that is not above `bound`. A candidate that satisfies this stays."""
        if self.failure is not None or (self.candidate is not None and (bound is None or self.candidate.step <= bound)):
            return
        if self.candidate is not None:
            self.skipped.append((self.candidate.step, _UNUSABLE_ELSEWHERE))
        self.candidate = self.state = None
        try:
            self._search(bound)
            if self.candidate is None and self._trust_marks and self.skipped:
                # Marks avoid useless reads. If nothing else is left, they are not trusted.
                self._trust_marks = False
                self.skipped = [one for one in self.skipped if one[1] == _UNUSABLE_ELSEWHERE]
                self._search(bound)
            if self.candidate is None and not self.skipped:
                lost_manifests.refuse(
                    self._root, self._prefix, lambda name: part_names.parse_part(name, self._prefix) is not None
                )
        except CheckpointError as error:
            self.failure = error

    def _search(self, bound: int | None) -> None:
        refused = {step for step, _ in self.skipped}
        cache = directory_cache.for_directory(self._root)
        for candidate in checkpoint.newest_first(self._root, self._prefix, cache=cache.manifests):
            if candidate.step not in refused and (bound is None or candidate.step <= bound) and self._use(candidate):
                return

    def _use(self, candidate: Checkpoint) -> bool:
        mark = damage_marks.current_mark(candidate)
        mode = sampling.FULL if mark else self._verify  # only reading every byte can remove a mark
        try:
            if mark and self._trust_marks:
                raise streams.DamagedFile(mark)
            try:
                self.state = self._read(candidate, mode)
            except streams.DamagedFile:
                refreshed = verify.recheck(candidate)
                if refreshed is None:
                    raise
                candidate = refreshed
                self.state = self._read(candidate, mode)
        except streams.DamagedFile as damage:
            if mark is None or not self._trust_marks:
                damage_marks.mark(candidate, str(damage))
            logger.warning("skipping step %d in %s: %s", candidate.step, self._root, damage)
            self.skipped.append((candidate.step, str(damage)))
            return False
        if mode == sampling.FULL:
            damage_marks.unmark(candidate)
        self.candidate = candidate
        return True

    def _read(self, candidate: Checkpoint, verify: str) -> Any:
        parts = shards.parts(candidate)
        if len(parts) != self._world_size:
            raise CheckpointError(
                f"step {candidate.step} in {self._root} was saved in {len(parts)} parts, and {self._world_size} are "
                "needed now: run with as many processes as before, or save with torch.distributed.checkpoint through "
                "perdure.checkpoint.adapters.dcp, which can redistribute"
            )
        return shards.read_part(self._root, parts[self._rank], verify)

    def report(self) -> _Report:
        """What the other processes need to know."""
        return _Report(
            step=self.candidate.step if self.candidate else None,
            skipped=len(self.skipped),
            failure=str(self.failure) if self.failure else "",
        )

    def result(self, reports: Sequence[_Report]) -> tuple[LoadResult, Any]:
        """The outcome that all have agreed on. Raises NoUsableCheckpoint."""
        if self.candidate is None:
            if any(one.skipped for one in reports):
                raise NoUsableCheckpoint(all_refused_message(self._root, self._prefix, self.skipped), self.skipped)
            logger.info("nothing saved yet in %s under the prefix %r", self._root, self._prefix)
            if self._rank == 0:
                lost_manifests.record_beginning(self._root, self._prefix)
            return LoadResult(None), None
        step = self.candidate.step
        journal.record(step, journal.LOADED, manifest.path_of(self._root, self.candidate.manifests[-1].name))
        logger.info("loaded step %d from %s", step, self._root)
        return LoadResult(step, tuple(self.skipped), tuple(self.candidate.all_paths)), self.state
