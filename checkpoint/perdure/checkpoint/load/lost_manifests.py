"""Checkpoints without any manifest. They are never a reason to start from scratch.

Two cases look alike: a save that was killed before the first commit, and a directory that lost `.perdure` (it was
copied without its hidden files) or was filled before this library was used. The first save of a series therefore leaves
a record before it writes anything (`manifest.mark_started`), and so does a load that finds nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from perdure.checkpoint.errors import CheckpointUnavailable, retry_transient
from perdure.checkpoint.format import manifest


def refuse(root: str, prefix: str, is_own: Callable[[str], bool]) -> None:
    """Raise CheckpointUnavailable if files are there that saves of `prefix` have written, and nothing tells what they
    must contain. Call it if the series has no manifest. `is_own`: whether a name in `root` is that of such a file."""
    if has_begun(root, prefix):
        return
    try:
        lost = sorted(filter(is_own, retry_transient(lambda: os.listdir(root), root)))
    except (FileNotFoundError, NotADirectoryError):
        return
    if lost:
        raise CheckpointUnavailable(
            f"{root} holds {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}, and no manifest that tells what "
            "these must contain. Nothing was loaded or removed. If the directory was copied without its hidden folder "
            "`.perdure`, copy that too. If the files are whole, accept them as they are: python -m perdure.checkpoint "
            f"adopt --prefix {prefix} {root}. To start over, use an empty directory."
        )


def has_begun(root: str, prefix: str) -> bool:
    """Whether it is recorded that saves of `prefix` have begun, and none was committed yet."""
    return prefix in manifest.started_prefixes(manifest.list_names(root))


def record_beginning(root: str, prefix: str) -> None:
    """Record that nothing of `prefix` was saved so far: what a killed save leaves will not pass for lost checkpoints.

    Best effort: a directory that cannot be written is left as it is.
    """
    with contextlib.suppress(OSError, CheckpointUnavailable):
        if os.path.isdir(root) and not has_begun(root, prefix):
            manifest.mark_started(root, prefix, 0)
