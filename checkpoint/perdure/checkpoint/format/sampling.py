"""The modes by which a file is compared with what was saved, and the sample of a file.

- full: every byte, against the file's digest. Finds any change.
- sampled: the first and the last 64 KiB and 30 pieces between them, evenly spread. Finds truncation, another file under
  the name, a tail that was never written, and holes larger than a 31st of the file. Misses changes between the pieces.
- size: only the length. Finds only truncation.
"""

from __future__ import annotations

import os

from perdure.checkpoint.format import digest

FULL, SAMPLED, SIZE = "full", "sampled", "size"
MODES = (FULL, SAMPLED, SIZE)

_PIECE_BYTES = 64 * 1024
_PIECES = 32


def check_mode(verify: str) -> str:
    """`verify` itself. Raises ValueError if it is not a mode."""
    if verify not in MODES:
        raise ValueError(f"verify is one of {', '.join(map(repr, MODES))}, not {verify!r}")
    return verify


def sample_spans(size: int) -> list[tuple[int, int]]:
    """(begin, end) of each piece of a file of `size` bytes; the whole file if it is small."""
    if size <= _PIECES * _PIECE_BYTES:
        return [(0, size)]
    begins = [(size - _PIECE_BYTES) * number // (_PIECES - 1) for number in range(_PIECES)]
    return [(begin, begin + _PIECE_BYTES) for begin in begins]


class Sampler:
    """Computes the digest of a file's sample from all of its bytes, in their order."""

    def __init__(self, algorithm: str, size: int) -> None:
        self._hasher = digest.new_hasher(algorithm)
        self._spans = sample_spans(size)
        self._offset = 0

    def update(self, data: memoryview) -> None:
        begin, end = self._offset, self._offset + len(data)
        self._offset = end
        while self._spans and self._spans[0][0] < end:
            first, last = self._spans[0]
            self._hasher.update(data[max(first - begin, 0) : last - begin])
            if last > end:
                return
            del self._spans[0]

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


def hash_sample(path: str, algorithm: str, size: int) -> str:
    """The digest of the sample of the file's first `size` bytes. Raises OSError, and as `digest.new_hasher` does."""
    hasher = digest.new_hasher(algorithm)
    with open(path, "rb", buffering=0) as file:
        for begin, end in sample_spans(size):
            while begin < end and (data := os.pread(file.fileno(), end - begin, begin)):
                hasher.update(memoryview(data))
                begin += len(data)
    return hasher.hexdigest()
