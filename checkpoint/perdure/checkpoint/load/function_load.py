"""One load: find the newest whole checkpoint, and pass its step to the user's function.

Every file is compared with its manifest (`verify`) before the function is called, so a damaged checkpoint never reaches
the model. What the function itself raises is passed on: an error in a program is no reason to fall back to an older
checkpoint. The exception: if nothing was ever committed by this library, the files come from other code, and the
function's error about a damaged file is the only indication of damage.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from perdure.checkpoint.durability import journal, mounts
from perdure.checkpoint.errors import NoUsableCheckpoint, retry_transient
from perdure.checkpoint.format import manifest, sampling, step_names
from perdure.checkpoint.format.file_changes import OWN_DIR
from perdure.checkpoint.load import directory_cache, mount_refresh
from perdure.checkpoint.load.saved_step import Checkpoint, newest_first
from perdure.checkpoint.load.verify import verify_and_mark

logger = logging.getLogger("perdure.checkpoint")

T = TypeVar("T")


@dataclass(frozen=True)
class LoadResult:
    """What a load did."""

    step: int | None  # None: nothing was saved yet, and the function was not called
    skipped: tuple[tuple[int, str], ...] = ()  # (step, reason) of each newer checkpoint that was refused, newest first
    files: tuple[str, ...] = ()  # absolute paths
    missing: tuple[str, ...] = ()  # of `into`: what the checkpoint does not have (`strict=False`)
    unexpected: tuple[str, ...] = ()  # of the checkpoint: what `into` does not have (`strict=False`)


@dataclass(frozen=True)
class _Candidate:
    """A step that may be loaded."""

    step: int
    paths: frozenset[str]  # relative to the directory
    location: str  # of its manifest, for the agent
    checkpoint: Checkpoint | None = None  # None: written by other code, and known only by the names of its files


def load(
    root: str, prefix: str, call: Callable[[int], T], *, verify: str = sampling.FULL, trust_marks: bool = True
) -> tuple[LoadResult, T | None]:
    """Call `call` with the step of the newest usable checkpoint; returns the result of the search and of the call.

    `verify`: the mode of `sampling` by which a checkpoint is verified first. `trust_marks`: do not read checkpoints
    that are marked as damaged, unless no other can be loaded.

    Raises what `call` raises; NoUsableCheckpoint when there are checkpoints and all were refused; CheckpointUnavailable
    when they cannot be read now.
    """
    mounts.require_mounted(root)
    mount_refresh.refresh(root)
    directory_cache.for_directory(root).was_searched = True
    skipped: list[tuple[int, str]] = []
    for candidate in _candidates(root, prefix):
        reason = _find_damage(candidate, root, verify, trust_marks=trust_marks)
        cause: Exception | None = None
        if reason is None:
            try:
                value = call(candidate.step)
            except Exception as error:
                reason = _damage_indicated_by(error, candidate, root, prefix)
                if reason is None:
                    raise
                cause = error
            else:
                return _loaded(root, candidate, skipped), value
        logger.warning("skipping step %d in %s: %s", candidate.step, root, reason, exc_info=cause)
        skipped.append((candidate.step, reason))
    if skipped and trust_marks:  # marks avoid useless reads; if nothing else is left, they are not trusted
        return load(root, prefix, call, verify=verify, trust_marks=False)
    if skipped:
        raise NoUsableCheckpoint(all_refused_message(root, prefix, skipped), skipped)
    logger.info("nothing saved yet in %s under the prefix %r: starting from the beginning", root, prefix)
    return LoadResult(None), None


def _candidates(root: str, prefix: str) -> Iterator[_Candidate]:
    entries = manifest.list_manifests(root)
    if not entries:
        yield from _foreign_candidates(root, prefix)
        return
    others = {entry.prefix for entry in entries if entry.prefix != prefix}
    if len(others) and not any(entry.prefix == prefix for entry in entries):
        logger.warning(
            "%s has no checkpoints with the prefix %r, only with %s; pass the checkpoint_prefix they were saved with",
            *(root, prefix, ", ".join(map(repr, sorted(others)))),
        )
    for saved in newest_first(root, prefix):
        location = manifest.path_of(root, saved.manifests[-1].name) if saved.manifests else root
        yield _Candidate(saved.step, frozenset(saved.files), location, saved)


def _foreign_candidates(root: str, prefix: str) -> Iterator[_Candidate]:
    """What other code saved: top-level files and folders whose names end in a number, grouped by it, newest first.

    If some names begin with the prefix, the others are left out. So is every step whose save by this library began and
    never ended.
    """
    try:
        listing = retry_transient(lambda: os.listdir(root), root)
    except (FileNotFoundError, NotADirectoryError):
        return
    unfinished = set(manifest.list_started(root).values())
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
    match = re.search(r"(?<![0-9.])[0-9]+$", os.path.splitext(name)[0])
    return int(match.group()) if match else None


def _find_damage(candidate: _Candidate, root: str, verify: str, *, trust_marks: bool) -> str | None:
    if candidate.checkpoint is None:
        return next(filter(None, (_foreign_damage(root, path) for path in sorted(candidate.paths))), None)
    return verify_and_mark(candidate.checkpoint, trust_marks=trust_marks, verify=verify)


def _foreign_damage(root: str, name: str) -> str | None:
    path = os.path.join(root, name)
    now = retry_transient(lambda: os.stat(path), path)
    if not stat.S_ISREG(now.st_mode) and not stat.S_ISDIR(now.st_mode):
        return f"{name} is neither a file nor a folder"  # reading a pipe would take forever
    return f"{name} is empty" if stat.S_ISREG(now.st_mode) and now.st_size == 0 else None


def _damage_indicated_by(error: Exception, candidate: _Candidate, root: str, prefix: str) -> str | None:
    """Why the function's error means that this checkpoint cannot be used; None for an error of the program itself."""
    missing = _missing_file(error, root)
    if missing is not None and missing not in candidate.paths:
        template = step_names.template(missing, candidate.step)
        others = (other for other in _candidates(root, prefix) if other.step != candidate.step)
        if any(template == step_names.template(path, other.step) for other in others for path in other.paths):
            return f"{missing} is not part of it: its save never finished, or another function saved this step"
    if candidate.checkpoint is None and _indicates_damage(error):
        return f"it cannot be read: {type(error).__name__}: {error}"
    return None


def _missing_file(error: Exception, root: str) -> str | None:
    """The path below `root` that does not exist, or None when the error is about something else."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, (str, os.PathLike)):
        return None
    relative = os.path.relpath(os.path.realpath(error.filename), os.path.realpath(root))
    return None if relative.startswith("..") else relative


# Type of an error of some framework → pattern of its text, if the file is truncated or corrupted.
_DAMAGE_TYPES: Mapping[str, str] = {
    "EOFError": "",
    "BadZipFile": "",
    "SafetensorError": "",
    "UnpicklingError": r"truncated|invalid load key|stack underflow|MARK|unexpected",
    "RuntimeError": r"PytorchStreamReader|unexpected EOF|corrupt|central directory|invalid magic number",
    "OSError": r"truncated|file signature not found|corrupt",
}


def _indicates_damage(error: Exception) -> bool:
    """Whether it is the error by which some framework reports a truncated or corrupted file."""
    if re.search(r"[Ww]eights.only", str(error)):  # torch refuses this kind of content, but the file is whole
        return False
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return any(kind in kinds and re.search(text, str(error)) for kind, text in _DAMAGE_TYPES.items())


def _loaded(root: str, candidate: _Candidate, skipped: list[tuple[int, str]]) -> LoadResult:
    journal.record(candidate.step, journal.LOADED, candidate.location)
    logger.info("loaded step %d from %s", candidate.step, root)
    if candidate.checkpoint is None:
        logger.warning(
            "step %d in %s was loaded without being verified: there is no manifest that tells what its files must "
            "contain. Either another program saved it, or the folder %s was lost.",
            *(candidate.step, root, OWN_DIR),
        )
    files = tuple(os.path.join(root, path) for path in sorted(candidate.paths))
    return LoadResult(candidate.step, tuple(skipped), files)


def all_refused_message(root: str, prefix: str, skipped: list[tuple[int, str]]) -> str:
    """The text of NoUsableCheckpoint. `skipped`: (step, reason) of each checkpoint."""
    lines = "".join(f"\n  step {step}: {reason}" for step, reason in skipped)
    return (
        f"none of the {len(skipped)} checkpoints in {root} (prefix {prefix!r}) can be used:{lines}\n"
        "Nothing was loaded or removed. Restore one of them, or start over on purpose with an empty directory."
    )
