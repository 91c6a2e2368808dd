"""Files of downloaded logs."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once the block has ended. If it raises, `path` stays as it was."""
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
