"""Digests of a file block by block: several threads can compute them at once, and a part of the file can be verified
without the rest.

The digest of a file with several blocks is that of its blocks' digests, as bytes and in their order. A file that is not
larger than one block has the digest of its content.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.checkpoint.format import digest

BLOCK_BYTES = 4 * 1024 * 1024  # of files that this version writes
MAX_BLOCK_BYTES = 64 * 1024 * 1024  # of files that it reads


def count_blocks(size: int, block_bytes: int) -> int:
    """How many blocks a file of `size` bytes has."""
    return -(-size // block_bytes)


def hash_block(algorithm: str, block: memoryview) -> str:
    """The digest (lower-case hex) of a block. Raises as `digest.new_hasher` does."""
    hasher = digest.new_hasher(algorithm)
    hasher.update(block)
    return hasher.hexdigest()


def combine(algorithm: str, digests: Sequence[str]) -> str:
    """The digest of a file whose blocks have these. Raises as `digest.new_hasher` does."""
    if len(digests) == 1:
        return digests[0]
    return hash_block(algorithm, memoryview(bytes.fromhex("".join(digests))))


def split(blocks: str, count: int) -> list[str]:
    """The digests of `count` blocks that `blocks` holds one after another. Raises ValueError if it does not."""
    width = len(blocks) // count
    if not width or width * count != len(blocks):
        raise ValueError(f"{len(blocks)} digits are not the digests of {count} blocks")
    return [blocks[begin : begin + width] for begin in range(0, len(blocks), width)]
