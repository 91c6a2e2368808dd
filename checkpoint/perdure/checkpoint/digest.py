"""Digests of files: XXH3-128 where the `xxhash` package is installed, else CRC-32 from the standard library.

Both find damage, neither stops a forger. The algorithm is stored with every digest, so either can be read back.
"""

from __future__ import annotations

import importlib
import os
import zlib
from typing import Any, Protocol

from perdure.checkpoint.errors import CheckpointUnavailable

XXH3_128 = "xxh3-128"
CRC_32 = "crc32"
_BLOCK_BYTES = 4 * 1024 * 1024


class UnknownAlgorithm(ValueError):
    """A manifest names an algorithm that this version does not know."""


class Hasher(Protocol):
    """What `hashlib` calls a hash object, as far as it is used here."""

    def update(self, data: memoryview, /) -> object: ...
    def hexdigest(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: memoryview, /) -> None:
        self._crc = zlib.crc32(data, self._crc)

    def hexdigest(self) -> str:
        return f"{self._crc:08x}"


def preferred_algorithm() -> str:
    """The fastest algorithm that this interpreter has."""
    return XXH3_128 if _xxhash() else CRC_32


def of_file(path: str, algorithm: str, *, length: int | None = None, sync: bool = False) -> str:
    """The digest (lower-case hex) of the file's first `length` bytes, or of all of it.

    `sync` also flushes the file to its disk. Raises OSError as reading does, UnknownAlgorithm, and
    CheckpointUnavailable when the algorithm's package is not installed here.
    """
    found = hasher(algorithm)
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    left = length
    with open(path, "rb", buffering=0) as file:
        while left is None or left > 0:
            count = file.readinto(buffer if left is None else buffer[:left])
            if not count:
                break
            found.update(buffer[:count])
            left = None if left is None else left - count
        if sync:
            os.fsync(file.fileno())
    return found.hexdigest()


def hasher(algorithm: str) -> Hasher:
    """A new hasher. Raises UnknownAlgorithm, and CheckpointUnavailable when its package is not installed here."""
    if algorithm == CRC_32:
        return _Crc32()
    if algorithm != XXH3_128:
        raise UnknownAlgorithm(algorithm)
    xxhash = _xxhash()
    if xxhash is None:
        raise CheckpointUnavailable(
            "the checkpoints here carry XXH3-128 digests, and the package `xxhash` that made them is not installed in "
            "this environment, so they can not be verified. Run `pip install xxhash` and try again."
        )
    made: Hasher = xxhash.xxh3_128()
    return made


def _xxhash() -> Any:
    """The optional package, looked for only once something is saved or loaded; None where it is not installed."""
    try:
        return importlib.import_module("xxhash")
    except ImportError:
        return None
