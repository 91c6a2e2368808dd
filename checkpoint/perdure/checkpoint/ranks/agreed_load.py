"""Which step all processes load: the newest one of which each of them can verify its part.

Each process searches for the newest step that it can use. Then all processes exchange their steps. Those whose step is
newer than the oldest one search again from the oldest one, until all processes have the same step.

For a certain step, or the one with the best metric, rank 0 lists the steps to try, and the first one counts that all
processes can use.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.checkpoint.durability import journal
from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.format import manifest, part_names, sampling
from perdure.checkpoint.load import (
    damage_marks,
    directory_cache,
    lost_manifests,
    mount_refresh,
    part_files,
    saved_step,
    verify,
)
from perdure.checkpoint.load.block_compare import DamagedFile
from perdure.checkpoint.load.function_load import LoadResult, all_refused_message
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.load.state_files import StateFiles
from perdure.checkpoint.load.state_reader import Finish, NewState, StateReader
from perdure.checkpoint.ranks.collective import Outcome, capture, gather_or_raise
from perdure.checkpoint.ranks.group import Group
from perdure.checkpoint.save.retention.keep_rule import is_number

logger = logging.getLogger("perdure.checkpoint")

_UNUSABLE_ELSEWHERE = "another process cannot use it"


@dataclass(frozen=True)
class Choice:
    """What to load instead of the newest step. Raises ValueError for a contradiction."""

    step: int | None = None
    metric: str | None = None  # the step with its best value
    mode: str = "min"  # or "max": which value is the best

    def __post_init__(self) -> None:
        if self.step is not None and self.metric is not None:
            raise ValueError("give either step or best, not both")
        if self.mode not in ("min", "max"):
            raise ValueError(f'mode is "min" or "max", not {self.mode!r}')

    def steps(self, root: str, prefix: str) -> list[int]:
        """The steps to try, in their order. Raises CheckpointError if there are none."""
        if self.metric is not None:
            return _best_first(root, prefix, self.metric, self.mode)
        assert self.step is not None
        return _only_step(root, prefix, self.step)


NEWEST = Choice()


@dataclass(frozen=True)
class _Report:
    """What one process found, as the others receive it."""

    step: int | None  # the newest step that it can use
    skipped: int  # how many it refused
    failure: str  # why it cannot search any further; empty if it can


def load_agreed_step(
    root: str,
    prefix: str,
    group: Group,
    rank: int,
    world_size: int,
    *,
    verify: str = sampling.FULL,
    choice: Choice = NEWEST,
    reader: StateReader | None = None,
) -> tuple[LoadResult, Any]:
    """Load part `rank` of `world_size` of the newest step that every process can use, or of the first such step of
    `choice`; returns the result and the state.

    `verify`: a mode of `sampling`. `reader`: how the state is loaded; None: as new objects.

    Raises, in every process, NoUsableCheckpoint when there are checkpoints and each was refused by a process,
    CheckpointUnavailable when some see no checkpoints where others do, and CheckpointError when `choice` names none or
    the state does not fit.
    """
    mount_refresh.refresh(root)
    directory_cache.for_directory(root).was_searched = True
    search = _Search(root, prefix, rank, world_size, verify, NewState() if reader is None else reader)
    try:
        if choice != replace(NEWEST, mode=choice.mode):
            return _load_chosen(search, root, prefix, group, choice)
        return _load_newest(search, root, prefix, group)
    except CheckpointError as error:
        if search.filled is not None:
            error.args = (
                f"{error}\nStep {search.filled} had been verified, and could not be read a second time: the arrays "
                "that were to be filled hold parts of it. Do not go on with them.",
            )
        raise


def _load_newest(search: _Search, root: str, prefix: str, group: Group) -> tuple[LoadResult, Any]:
    bound: int | None = None
    for number in itertools.count():
        search.advance(bound)
        reports = _exchange(search, group, f"load-{prefix}-{number}")
        steps = [one.step for one in reports]
        if len(set(steps)) > 1:
            if None in steps:
                _raise_disagreement(root, reports, search.skipped)
            bound = min(step for step in steps if step is not None)
        elif steps[0] is None or _finish(search, group, f"finish-{prefix}-{number}"):
            return search.result(reports)
    raise AssertionError("unreachable")


def _exchange(search: _Search, group: Group, topic: str) -> list[_Report]:
    """What all processes have found. Raises CheckpointError if one of them cannot go on."""
    reports = [_Report(**one) for one in group.all_gather(topic, vars(search.report()))]
    if failures := [one.failure for one in reports if one.failure]:
        raise search.failure or CheckpointError(failures[0])
    return reports


def _finish(search: _Search, group: Group, topic: str) -> bool:
    """Finish the load of the step that all have agreed on; returns whether all have. Raises as `_exchange`."""
    search.finish()
    if not search.reader.fills:
        return True
    try:
        if all(one.step is not None for one in _exchange(search, group, topic)):
            return True
    except CheckpointError:
        search.note_partial()
        raise
    search.note_partial()
    search.give_up()
    return False


def _load_chosen(search: _Search, root: str, prefix: str, group: Group, choice: Choice) -> tuple[LoadResult, Any]:
    mine = capture(lambda: choice.steps(root, prefix)) if group.rank == 0 else Outcome[list[int]]([])
    (steps, *_) = gather_or_raise(
        group, f"choose-{prefix}", mine, doing=f"loading from {root}", encode=lambda one: one, decode=list, advice=""
    )
    for step in steps:
        search.advance_to(step)
        reports = _exchange(search, group, f"load-{prefix}-step-{step}")
        if not all(one.step == step for one in reports):
            search.give_up()
        elif _finish(search, group, f"finish-{prefix}-step-{step}"):
            return search.result(reports)
    raise NoUsableCheckpoint(all_refused_message(root, prefix, search.skipped), search.skipped)


def _best_first(root: str, prefix: str, metric: str, mode: str) -> list[int]:
    """The steps that were saved with `metric`, the best first; of equals the newest. Raises CheckpointError."""
    saved = list(saved_step.newest_first(root, prefix))
    metrics = {one.step: one.manifests[-1].metrics for one in saved if one.manifests}
    values = {step: those[metric] for step, those in metrics.items() if is_number(those.get(metric))}
    if not values:
        known = sorted(set().union(*metrics.values())) if metrics else []
        raise CheckpointError(
            f"no checkpoint in {root} (prefix {prefix!r}) was saved with the metric {metric!r}; known are: "
            f"{', '.join(known) or 'none'}. Pass it to save(step, state, metrics={{{metric!r}: …}})"
        )
    sign = 1 if mode == "min" else -1
    return sorted(values, key=lambda step: (sign * float(values[step]), -step))


def _only_step(root: str, prefix: str, step: int) -> list[int]:
    """`step` alone. Raises CheckpointError if it was not saved."""
    saved = [one.step for one in saved_step.newest_first(root, prefix)]
    if step not in saved:
        shown = ", ".join(map(str, saved[:10])) + (", …" if len(saved) > 10 else "")
        raise CheckpointError(f"step {step} is not in {root} (prefix {prefix!r}); saved are: {shown or 'none'}")
    return [step]


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
    """One process's search, newest first. `candidate` is the last usable checkpoint, and `state` its content once
    `finish` has loaded it. `filled`: the last step that objects of the program have received a part of, and not all."""

    def __init__(self, root: str, prefix: str, rank: int, world_size: int, verify: str, reader: StateReader) -> None:
        self._root, self._prefix, self._rank, self._world_size = root, prefix, rank, world_size
        self.reader = reader
        self.filled: int | None = None
        self._finish: Finish | None = None
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
        self.give_up()
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

    def give_up(self) -> None:
        """Another process cannot use the candidate, if there is one."""
        if self.candidate is not None:
            self.skipped.append((self.candidate.step, _UNUSABLE_ELSEWHERE))
        self.candidate = self.state = self._finish = None

    def finish(self) -> None:
        """Load the candidate's content. If it is not what was verified any more, there is no candidate."""
        if self.candidate is None or self._finish is None:
            return
        candidate = self.candidate
        try:
            self.state = self._finish()
            self.filled = None
        except DamagedFile as damage:
            self.note_partial()
            self._refuse(candidate, str(damage))
            self.candidate = self._finish = None
        except CheckpointError as error:
            self.note_partial()
            self.failure = error

    def note_partial(self) -> None:
        """The load of the candidate has failed, here or in another process, and does not count."""
        if self.candidate is not None and self.reader.has_filled:
            self.filled = self.candidate.step

    def advance_to(self, step: int) -> None:
        """Use `step` if it is whole, whether or not it is marked as damaged."""
        self._trust_marks = False
        try:
            self._use(saved_step.read_step(self._root, self._prefix, step))
        except CheckpointError as error:
            self.failure = error

    def _search(self, bound: int | None) -> None:
        refused = {step for step, _ in self.skipped}
        cache = directory_cache.for_directory(self._root)
        for candidate in saved_step.newest_first(self._root, self._prefix, cache=cache.manifests):
            if candidate.step not in refused and (bound is None or candidate.step <= bound) and self._use(candidate):
                return

    def _use(self, candidate: Checkpoint) -> bool:
        mark = damage_marks.current_mark(candidate)
        mode = sampling.FULL if mark else self._verify  # only reading every byte can remove a mark
        try:
            if mark and self._trust_marks:
                raise DamagedFile(mark)
            try:
                self._finish = self._prepare(candidate, mode)
            except DamagedFile:
                refreshed = verify.recheck(candidate)
                if refreshed is None:
                    raise
                candidate = refreshed
                self._finish = self._prepare(candidate, mode)
        except DamagedFile as damage:
            self._refuse(candidate, str(damage), marks=mark is None or not self._trust_marks)
            return False
        if mode == sampling.FULL and self.reader.reads_all:
            damage_marks.unmark(candidate)
        self.candidate = candidate
        return True

    def _refuse(self, candidate: Checkpoint, damage: str, *, marks: bool = True) -> None:
        if marks:
            damage_marks.mark(candidate, damage)
        logger.warning("skipping step %d in %s: %s", candidate.step, self._root, damage)
        self.skipped.append((candidate.step, damage))

    def _prepare(self, candidate: Checkpoint, verify: str) -> Finish:
        parts = part_files.parts(candidate)
        if len(parts) != self._world_size:
            raise CheckpointError(
                f"step {candidate.step} in {self._root} was saved in {len(parts)} parts, and {self._world_size} are "
                "needed now: run with as many processes as before, or save with torch.distributed.checkpoint through "
                "perdure.checkpoint.adapters.dcp, which can redistribute"
            )
        return self.reader.prepare(
            StateFiles(self._root, parts[self._rank], part_files.referred_files(candidate), verify)
        )

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
