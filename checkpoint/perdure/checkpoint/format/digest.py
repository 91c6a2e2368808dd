"""Digests of files: XXH3-128 where the `xxhash` package is installed, else CRC-32 from the standard library.

Both detect damage; neither protects against forgery. The algorithm is stored with every digest, so either can be
verified later.
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
    """A manifest names an algorithm that this version does not support."""


class Hasher(Protocol):
    """The part of `hashlib`'s hash objects that is used here."""

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


def hash_file(path: str, algorithm: str, *, length: int | None = None, sync: bool = False) -> str:
    """The digest (lower-case hex) of the file's first `length` bytes, or of all of it.

    `sync` also flushes the file to its disk. Raises OSError as reading does, UnknownAlgorithm, and
    CheckpointUnavailable when the algorithm's package is not installed here.
    """
    hasher = new_hasher(algorithm)
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    left = length
    with open(path, "rb", buffering=0) as file:
        while left is None or left > 0:
            count = file.readinto(buffer if left is None else buffer[:left])
            if not count:
                break
            hasher.update(buffer[:count])
            left = None if left is None else left - count
        if sync:
            os.fsync(file.fileno())
    return hasher.hexdigest()


def crc32_of(path: str, length: int) -> int:
    """The CRC-32 of the file's first `length` bytes, whatever algorithm its digest has. Raises OSError."""
    return int(hash_file(path, CRC_32, length=length), 16)


def new_hasher(algorithm: str) -> Hasher:
    """A new hasher. Raises UnknownAlgorithm, and CheckpointUnavailable when its package is not installed here."""
    if algorithm == CRC_32:
        return _Crc32()
    if algorithm != XXH3_128:
        raise UnknownAlgorithm(algorithm)
    xxhash = _xxhash()
    if xxhash is None:
        raise CheckpointUnavailable(
            "the checkpoints here carry XXH3-128 digests, and the package `xxhash` that made them is not installed in "
            "this environment, so they cannot be verified. Run `pip install xxhash` and try again."
        )
    made: Hasher = xxhash.xxh3_128()
    return made


def _xxhash() -> Any:
    """The optional package, imported only once something is saved or loaded; None if it is not installed."""
    try:
        return importlib.import_module("xxhash")
    except ImportError:
        return None
