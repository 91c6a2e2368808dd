"""How far a folder is filled, and which folder it is: an empty one in its place must not empty the bucket."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from enum import Enum
from pathlib import Path

MARK_FILE = ".perdure-folder"  # at the folder's top where there are no extended attributes; never uploaded
_ATTRIBUTE = "user.perdure.folder"
_UNSUPPORTED = frozenset({errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOSPC, errno.E2BIG})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODATA, errno.ENOTSUP})


class Phase(Enum):
    NEW = ""
    COPYING = "copying"  # the bucket's content into an empty folder
    READY = "ready"


class FolderMarker:
    """The file `path`, in a directory that outlives the agent.

    A folder is recognised by a random token in an extended attribute or, where the file system has none, by one in a
    file together with the folder's device and inode. The numbers alone say little: a new folder often gets the inode
    of a removed one, and a new disk the device of the old one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def phase(self) -> Phase:
        return Phase(self._read().get("phase", ""))

    def set_copying(self) -> None:
        self._write({"phase": Phase.COPYING.value})

    def claim(self, folder: str) -> None:
        """The folder at this path is filled. Raises OSError."""
        token, status = secrets.token_hex(16), os.stat(folder)
        row = {"phase": Phase.READY.value, "token": token, "device": status.st_dev, "inode": status.st_ino}
        try:
            os.setxattr(folder, _ATTRIBUTE, token.encode())
            row["has_attribute"] = True
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            Path(folder, MARK_FILE).write_text(token)
        self._write(row)

    def is_claimed(self, folder: str) -> bool:
        """Whether the folder at this path is the one that was claimed. Cheap. Raises OSError if it cannot be read."""
        row = self._read()
        if row.get("phase") != Phase.READY.value or "token" not in row:
            return False
        try:
            if row.get("has_attribute"):
                return os.getxattr(folder, _ATTRIBUTE) == str(row["token"]).encode()
            status = os.stat(folder)
            is_same = (status.st_dev, status.st_ino) == (row["device"], row["inode"])
            return is_same and Path(folder, MARK_FILE).read_bytes() == str(row["token"]).encode()
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return False

    def _read(self) -> dict[str, object]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        if text in ("copying", "ready"):  # an agent before this form
            return {"phase": text}
        with contextlib.suppress(ValueError):  # cut off by a crash of the machine
            row: dict[str, object] = json.loads(text)
            return row
        return {}

    def _write(self, row: dict[str, object]) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        temporary.write_text(json.dumps(row))
        os.replace(temporary, self._path)
