"""Commits checkpoints as they are: those of a directory that lost its manifests, and those of another program."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from perdure.checkpoint.format import digest, file_changes, part_names, sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load import state_files
from perdure.checkpoint.save.finish_step import Series, build_manifest
from perdure.checkpoint.save.save_directory import SaveDirectory


def adopt(directory: SaveDirectory, prefix: str) -> list[int]:
    """Write a manifest for every step of `prefix` that has none; returns the steps, oldest first.

    A step is a folder `<prefix>-<step>`, a complete set of parts of a Checkpointer, or a Lightning file with `step=` in
    its name. Whether its content is what was saved once cannot be known. Raises OSError and CheckpointUnavailable.
    """
    committed = {entry.step for entry in directory.entries() if entry.prefix == prefix}
    series = Series(directory.root, prefix, None, {"adopted": True})
    adoptable = {step: paths for step, paths in _steps(directory.root, prefix) if step not in committed}
    for step in sorted(adoptable):
        records = [_record(directory.root, path) for path in sorted(adoptable[step])]
        directory.commit(build_manifest(series, step, records))
    directory.delete_started(prefix)
    return sorted(adoptable)


def _steps(root: str, prefix: str) -> Iterator[tuple[int, list[str]]]:
    parts: dict[tuple[int, int], dict[int, list[str]]] = {}
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        folder = re.fullmatch(re.escape(prefix) + r"-(\d+)", name)
        if folder and os.path.isdir(path) and (files := file_changes.scan(path)):
            yield int(folder[1]), [f"{name}/{file}" for file in files]
        elif (part := part_names.parse_part(name, prefix)) is not None and os.path.isfile(path):
            parts.setdefault((part.step, part.world_size), {}).setdefault(part.rank, []).append(name)
        elif prefix == "lightning" and (lightning := re.search(r"step=(\d+).*\.ckpt$", name)) and os.path.isfile(path):
            yield int(lightning[1]), [name]
    for (step, world_size), by_rank in parts.items():
        if sorted(by_rank) == list(range(world_size)):
            names = [_newest(root, names) for names in by_rank.values()]
            shared = {file for name in names for file in state_files.shared_with(root, name)}
            if all(os.path.isfile(os.path.join(root, file)) for file in shared):
                yield step, [*names, *shared]


def _newest(root: str, names: list[str]) -> str:
    return max(names, key=lambda name: os.stat(os.path.join(root, name)).st_mtime_ns)


def _record(root: str, path: str) -> FileRecord:
    absolute, algorithm = os.path.join(root, path), digest.preferred_algorithm()
    size = os.stat(absolute).st_size
    content = digest.hash_file(absolute, algorithm, length=size, sync=True)
    return FileRecord(path, size, content, algorithm, sampling.hash_sample(absolute, algorithm, size))
