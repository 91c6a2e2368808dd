"""The files of a state: one per process that saves, each under a name of its own, and what they hold.

`<prefix>-<step, 12 digits>-<rank>of<world size>-<unique>.safetensors`. No name is ever used twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint import durability, manifest, samples
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import CheckpointError, patiently
from perdure.checkpoint.manifest import FileRecord
from perdure.checkpoint.state import container, streams
from perdure.checkpoint.state.container import Layout
from perdure.checkpoint.state.tree import Flat

_NAME = re.compile(r"-\d{12,}-(?P<rank>\d+)of(?P<world>\d+)-[0-9a-f]{8}\.safetensors$")
_TEMPORARY = ".tmp-"


class NotOurs(CheckpointError):
    """The checkpoint was not saved by a Checkpointer."""


@dataclass(frozen=True)
class Content:
    """What a part will hold: its bytes, piece by piece, and how many they are."""

    size: int
    pieces: Iterable[memoryview]


def write(root: str, prefix: str, step: int, rank: int, world_size: int, content: Content) -> FileRecord:
    """Write one process's part; after this returns it is on the disk under its final name. Raises OSError.

    The name is final only once the content is: what a killed process leaves behind is never taken for a part.
    """
    name = f"{prefix}-{step:012d}-{rank}of{world_size}-{os.urandom(4).hex()}.safetensors"
    os.makedirs(root, exist_ok=True)
    temporary = os.path.join(root, _TEMPORARY + name)
    written = streams.write(temporary, content.pieces, size_hint=content.size)
    os.replace(temporary, os.path.join(root, name))
    manifest.sync_directory(root)
    return FileRecord(name, *written)


def read(root: str, record: FileRecord, verify: str = samples.FULL) -> Any:
    """The state of one part, compared with its digest, as closely as `verify` says, before it is looked at.

    Raises streams.Damaged, CheckpointUnavailable, and CheckpointError when a framework is missing.
    """
    path = os.path.join(root, record.path)
    try:
        data = patiently(lambda: streams.read(durability.where_to_read(path), record, verify), path)
    except (FileNotFoundError, NotADirectoryError):
        raise streams.Damaged(f"{record.path} is missing") from None
    return container.parse(data)


def of(found: Checkpoint) -> tuple[FileRecord, ...]:
    """The parts of a checkpoint in the order of ranks. Raises NotOurs, and streams.Damaged for a broken manifest."""
    if found.damage:
        raise streams.Damaged(found.damage)
    files = found.manifests[-1].files
    names = [_NAME.search(record.path) for record in files]
    parts = {int(name["rank"]): record for name, record in zip(names, files) if name}
    worlds = {int(name["world"]) for name in names if name}
    if None in names or len(worlds) != 1 or sorted(parts) not in ([0], list(range(*worlds))):
        raise NotOurs(
            f"step {found.step} in {found.root} was not saved by Checkpointer; load it with @load_checkpoint, or save "
            "under another prefix"
        )
    return tuple(parts[rank] for rank in sorted(parts))


def remove_leftovers(root: str, prefix: str, rank: int) -> None:
    """Remove what an earlier process of this rank began to write and never finished. Raises OSError."""
    with os.scandir(root) as entries:
        for entry in entries:
            name = _NAME.search(entry.name)
            if name and int(name["rank"]) == rank and entry.name.startswith(f"{_TEMPORARY}{prefix}-"):
                os.unlink(entry.path)


def content_of(flat: Flat, layout: Layout) -> Content:
    """A state as a part; arrays that lie in memory as they are written are not copied."""
    return Content(layout.size, _pieces(flat, layout))


def _pieces(flat: Flat, layout: Layout) -> Iterator[memoryview]:
    yield memoryview(layout.header)
    for number, _, _ in layout.places():
        yield flat.arrays[number].view()
