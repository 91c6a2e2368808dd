"""When a manifest may be uploaded: once the bucket has the files that it lists."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence

MANIFESTS = ".perdure"  # the folder of a save's manifests, in its save directory


def is_manifest(name: str) -> bool:
    return os.path.basename(os.path.dirname(name)) == MANIFESTS


def in_order(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(files, manifests): the first are uploaded first, and removed last."""
    return [name for name in names if not is_manifest(name)], sorted(filter(is_manifest, names))


def is_waiting(folder: str, manifest: str, pending: Collection[str]) -> bool:
    """Whether the bucket lacks a file of the manifest. `pending`: files and directories that it does not have.

    A manifest that cannot be read waits for all files of its save directory.
    """
    save_dir = os.path.dirname(os.path.dirname(manifest))
    listed = _listed(os.path.join(folder, manifest))
    if listed is None:
        top = f"{save_dir}/" if save_dir else ""
        return any(name.startswith(top) and not is_manifest(name) for name in pending)
    names = {os.path.normpath(os.path.join(save_dir, name)) for name in listed}
    return any(name in names or any(one.startswith(f"{name}/") for one in names) for name in pending)


def _listed(path: str) -> list[str] | None:
    """The files of a manifest; none for another JSON document; None for what cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        return [str(row["path"]) for row in document.get("files", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
