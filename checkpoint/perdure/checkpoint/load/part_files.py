"""The files of a state: one part per process that saves, each under a name of its own (`format.part_names`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.format import manifest, part_names
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load.block_compare import DamagedFile
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.state import streams
from perdure.checkpoint.state.container import Layout
from perdure.checkpoint.state.tree import Flat


class ForeignCheckpoint(CheckpointError):
    """The checkpoint was not saved by a Checkpointer."""


@dataclass(frozen=True)
class Content:
    """The bytes that a part will hold, in pieces."""

    size: int  # bytes, in total
    pieces: Iterable[memoryview]


def write_part(root: str, prefix: str, step: int, rank: int, world_size: int, content: Content) -> FileRecord:
    """Write one process's part; when this returns it is on the disk under its final name. Raises OSError."""
    return write_file(root, prefix, part_names.new_name(prefix, step, rank, world_size), content)


def write_file(root: str, prefix: str, name: str, content: Content) -> FileRecord:
    """As `write_part`, under a name that was never used before."""
    os.makedirs(root, exist_ok=True)
    temporary = os.path.join(root, part_names.Writer.current().temporary_name(prefix))
    written = streams.write_synced(temporary, content.pieces, size_hint=content.size)
    try:
        os.replace(temporary, os.path.join(root, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    manifest.sync_directory(root)
    return written.record(name)


def parts(checkpoint: Checkpoint) -> tuple[FileRecord, ...]:
    """The parts of a checkpoint in the order of ranks.

    Raises ForeignCheckpoint, and DamagedFile for a damaged manifest.
    """
    if checkpoint.damage:
        raise DamagedFile(checkpoint.damage)
    files = [record for record in checkpoint.manifests[-1].files if not part_names.is_referred(record.path)]
    names = [part_names.rank_and_world(record.path) for record in files]
    by_rank = {name[0]: record for name, record in zip(names, files) if name}
    worlds = {name[1] for name in names if name}
    if None in names or len(worlds) != 1 or sorted(by_rank) not in ([0], list(range(*worlds))):
        raise ForeignCheckpoint(
            f"step {checkpoint.step} in {checkpoint.root} was not saved by Checkpointer; load it with "
            "@load_checkpoint, or save under another prefix"
        )
    return tuple(by_rank[rank] for rank in sorted(by_rank))


def referred_files(checkpoint: Checkpoint) -> dict[str, FileRecord]:
    """The files that its parts may refer to, by path."""
    return {record.path: record for record in checkpoint.manifests[-1].files if part_names.is_referred(record.path)}


def make_content(flat: Flat, layout: Layout) -> Content:
    """A state as a part. Arrays that are in memory in the form in which they are written are not copied."""
    return Content(layout.size, _pieces(flat, layout))


def _pieces(flat: Flat, layout: Layout) -> Iterator[memoryview]:
    yield memoryview(layout.header)
    for number, _, _ in layout.places():
        yield flat.arrays[number].view()
