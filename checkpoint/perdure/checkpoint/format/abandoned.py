"""Steps that were left behind: a program has loaded an older step on purpose, and gone on from there.

They are not removed for that. A load without a step comes to them last, and so does retention: otherwise the next start
would return to what the user has left. A record is `.perdure/<prefix>-<step, 12 digits>-<unique>.abandoned`, a JSON
list of the names of manifests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Collection, Iterable
from functools import lru_cache

from perdure.checkpoint.errors import retry_transient
from perdure.checkpoint.format import manifest
from perdure.checkpoint.format.regular_file import open_regular

logger = logging.getLogger("perdure.checkpoint")

_SUFFIX = ".abandoned"


def write(root: str, prefix: str, step: int, names: Collection[str], listing: Iterable[str]) -> str:
    """Record that the manifests `names` are left behind by a save of `step`; returns the name of the record.

    `listing`: the names beside the manifests. Earlier records that name none of them are removed. Raises OSError.
    """
    name = manifest.write_record(root, prefix, step, _SUFFIX, json.dumps(sorted(names)))
    present = set(listing)
    for earlier in present:
        if earlier.endswith(_SUFFIX) and present.isdisjoint(_read(root, earlier)):
            with contextlib.suppress(OSError):
                os.unlink(manifest.path_of(root, earlier))
    return name


def records_among(prefix: str, listing: Iterable[str]) -> list[str]:
    """The names of the records of `prefix` in a listing."""
    return [name for name in listing if name.endswith(_SUFFIX) and name.rsplit("-", 2)[0] == prefix]


def among(root: str, listing: Iterable[str]) -> frozenset[str]:
    """The names of all manifests that were left behind, by the records in a listing.

    Raises CheckpointUnavailable when one cannot be read now.
    """
    records = [_read(root, name) for name in listing if name.endswith(_SUFFIX)]
    return frozenset().union(*records)


@lru_cache(maxsize=256)
def _read(root: str, name: str) -> frozenset[str]:
    """The names in a record, which never changes. Empty if it is gone or damaged."""

    def read() -> bytes:
        with open_regular(manifest.path_of(root, name)) as file:
            return file.readall()

    try:
        names = json.loads(retry_transient(read, manifest.path_of(root, name)))
        return frozenset(map(str, names))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except (ValueError, TypeError, RecursionError) as error:
        logger.warning("%s cannot be read, so the newest step counts: %s", manifest.path_of(root, name), error)
        return frozenset()
