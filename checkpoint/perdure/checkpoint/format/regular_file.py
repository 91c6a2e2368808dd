"""Opening files that must be regular ones. A pipe in the place of a file would block its reader forever."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO


def open_regular(path: str) -> FileIO:
    """Open `path` for reading, unbuffered. Raises OSError, and FileNotFoundError for anything but a regular file: a
    folder, a pipe, a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return FileIO(descriptor, "rb")
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "it is not a regular file", path)
