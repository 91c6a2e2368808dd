"""Files of downloaded logs."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from perdure.sdk.connection.endpoint import ClientError


def folder_name(id: object, name: object) -> str:
    """The name of the folder of a job or a service, by its id and its name, which no controller can make a path.

    Raises ClientError.
    """
    return f"{whole_number(id)}-{re.sub('[^A-Za-z0-9_.-]', '-', str(name))}"


def whole_number(value: object) -> int:
    """A number that becomes a part of a path. Raises ClientError if the controller has sent something else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ClientError("the controller sent something else than a number", fix="check PERDURE_ENDPOINT")
    return value


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
