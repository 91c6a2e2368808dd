"""One load: find the newest checkpoint that is whole, and hand its step to the user's function.

Every file is compared with its manifest before the function sees it, so a broken checkpoint never touches the model.
What the function itself raises is the user's to see: an error in a program is no reason to go back in time. Only where
nothing was ever committed by this library, and the files come from other code, its complaint about a broken file is all
there is to go by.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from perdure.checkpoint import checkpoints, durability, journal, manifest, marks, names, samples, second_look
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import NoUsableCheckpoint, patiently
from perdure.checkpoint.snapshot import OWN_DIR

logger = logging.getLogger("perdure.checkpoint")

T = TypeVar("T")


@dataclass(frozen=True)
class LoadResult:
    """What a load did. `step` None: nothing was saved yet, and the function was not called.

    `skipped`: (step, reason) of each newer checkpoint that was refused, newest first. `files`: absolute paths.
    """

    step: int | None
    skipped: tuple[tuple[int, str], ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """A step that may be loaded. `checkpoint` None: written by other code, and known by its files' names alone."""

    step: int
    paths: frozenset[str]
    where: str
    checkpoint: Checkpoint | None = None


def load(
    root: str, prefix: str, call: Callable[[int], T], *, verify: str = samples.FULL, believe: bool = True
) -> tuple[LoadResult, T | None]:
    """Call `call` with the step of the newest usable checkpoint; returns what happened and what it returned.

    `verify`: how closely a checkpoint is looked at before (`samples`). `believe`: do not read those that are marked as
    damaged, as long as another can be loaded.

    Raises what `call` raises; NoUsableCheckpoint when there are checkpoints and all were refused; CheckpointUnavailable
    when they can not be read now.
    """
    durability.require_mounted(root)
    second_look.refresh(root)
    skipped: list[tuple[int, str]] = []
    for candidate in _candidates(root, prefix):
        reason = _fault(candidate, root, verify, believe=believe)
        told: Exception | None = None
        if reason is None:
            try:
                value = call(candidate.step)
            except Exception as error:
                reason = _damage_told_by(error, candidate, root, prefix)
                if reason is None:
                    raise
                told = error
            else:
                return _loaded(root, candidate, skipped), value
        logger.warning("skipping step %d in %s: %s", candidate.step, root, reason, exc_info=told)
        skipped.append((candidate.step, reason))
    if skipped and believe:  # marks spare reading in vain; where nothing else is left, they are not believed
        return load(root, prefix, call, verify=verify, believe=False)
    if skipped:
        raise NoUsableCheckpoint(refused_all(root, prefix, skipped), skipped)
    logger.info("nothing saved yet in %s under the prefix %r: starting from the beginning", root, prefix)
    return LoadResult(None), None


def _candidates(root: str, prefix: str) -> Iterator[_Candidate]:
    entries = manifest.entries(root)
    if not entries:
        yield from _by_names(root, prefix)
        return
    others = {entry.prefix for entry in entries if entry.prefix != prefix}
    if len(others) and not any(entry.prefix == prefix for entry in entries):
        logger.warning(
            "%s has no checkpoints with the prefix %r, only with %s; pass the checkpoint_prefix they were saved with",
            *(root, prefix, ", ".join(map(repr, sorted(others)))),
        )
    for found in checkpoints.newest_first(root, prefix):
        where = manifest.path_of(root, found.manifests[-1].name) if found.manifests else root
        yield _Candidate(found.step, frozenset(found.files), where, found)


def _by_names(root: str, prefix: str) -> Iterator[_Candidate]:
    """What other code saved: top-level files and folders whose names end in a number, grouped by it, newest first.

    Where some begin with the prefix the others are left out, and so is every step whose save by this library began and
    never ended.
    """
    try:
        listing = patiently(lambda: os.listdir(root), root)
    except (FileNotFoundError, NotADirectoryError):
        return
    unfinished = set(manifest.announced(root).values())
    numbered = {name: step for name in listing if (step := _trailing_number(name)) is not None}
    prefixed = {name: step for name, step in numbered.items() if re.match(re.escape(prefix) + r"[^0-9A-Za-z]", name)}
    groups: dict[int, set[str]] = {}
    for name, step in (prefixed or numbered).items():
        if step not in unfinished:
            groups.setdefault(step, set()).add(name)
    for step in sorted(groups, reverse=True):
        yield _Candidate(step, frozenset(groups[step]), root)


def _trailing_number(name: str) -> int | None:
    if name.startswith(".") or name == OWN_DIR:
        return None
    found = re.search(r"(?<![0-9.])[0-9]+$", os.path.splitext(name)[0])
    return int(found.group()) if found else None


def _fault(candidate: _Candidate, root: str, verify: str, *, believe: bool) -> str | None:
    if candidate.checkpoint is None:
        return next(
            (f"{path} is empty" for path in sorted(candidate.paths) if _is_empty(os.path.join(root, path))), None
        )
    return marks.fault(candidate.checkpoint, believe=believe, verify=verify)


def _is_empty(path: str) -> bool:
    status = patiently(lambda: os.stat(path), path)
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _damage_told_by(error: Exception, candidate: _Candidate, root: str, prefix: str) -> str | None:
    """Why the function's error means that this checkpoint can not be used; None when it is the program's own error."""
    missing = _missing_file(error, root)
    if missing is not None and missing not in candidate.paths:
        wanted = names.template(missing, candidate.step)
        others = (other for other in _candidates(root, prefix) if other.step != candidate.step)
        if any(wanted == names.template(path, other.step) for other in others for path in other.paths):
            return f"{missing} is not part of it: its save never finished"
    if candidate.checkpoint is None and _tells_of_damage(error):
        return f"it can not be read: {type(error).__name__}: {error}"
    return None


def _missing_file(error: Exception, root: str) -> str | None:
    """The path below `root` that was looked for and not found, or None when the error is about something else."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, (str, os.PathLike)):
        return None
    relative = os.path.relpath(os.path.realpath(error.filename), os.path.realpath(root))
    return None if relative.startswith("..") else relative


_DAMAGE_TYPES: Mapping[str, str] = {
    "EOFError": "",
    "BadZipFile": "",
    "SafetensorError": "",
    "UnpicklingError": r"truncated|invalid load key|stack underflow|MARK|unexpected",
    "RuntimeError": r"PytorchStreamReader|unexpected EOF|corrupt|central directory|invalid magic number",
    "OSError": r"truncated|file signature not found|corrupt",
}


def _tells_of_damage(error: Exception) -> bool:
    """Whether a loader of some framework says, in the way it has, that the file is cut off or garbled."""
    if re.search(r"[Ww]eights.only", str(error)):  # torch refuses the kind of content, which is whole
        return False
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return any(kind in kinds and re.search(text, str(error)) for kind, text in _DAMAGE_TYPES.items())


def _loaded(root: str, candidate: _Candidate, skipped: list[tuple[int, str]]) -> LoadResult:
    journal.note(candidate.step, journal.LOADED, candidate.where)
    logger.info("loaded step %d from %s", candidate.step, root)
    files = tuple(os.path.join(root, path) for path in sorted(candidate.paths))
    return LoadResult(candidate.step, tuple(skipped), files)


def refused_all(root: str, prefix: str, skipped: list[tuple[int, str]]) -> str:
    lines = "".join(f"\n  step {step}: {reason}" for step, reason in skipped)
    return (
        f"none of the {len(skipped)} checkpoints in {root} (prefix {prefix!r}) can be used:{lines}\n"
        "Nothing was loaded or removed. Restore one of them, or start over on purpose with an empty directory."
    )
