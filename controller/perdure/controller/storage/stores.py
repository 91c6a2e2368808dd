"""Where buckets live: what every store can do, and the store on this computer's disk. Each other has its module."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from perdure.controller.clouds.base import Fault
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

RETRY_AFTER_S = 15.0
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_GCS_NAME = re.compile(r"(?!goog)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_AZURE_NAME = re.compile(r"[a-z0-9]{3,24}/(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*")
_PASSING_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EMFILE})


class StorageError(Exception):
    """A bucket can not be had as asked, and no retry will help. `where`: the field; `fix`: what to do."""

    def __init__(self, message: str, *, where: str | None = None, fix: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}: {self.fix}" if self.fix else head


@dataclass(frozen=True)
class Access:
    """Who mounts a bucket: a machine of `cloud` (None: of whichever), which `writes`, or only reads."""

    cloud: str | None = None
    writes: bool = True


ANYWHERE = Access()


class Store(Protocol):
    """One place for buckets. Shared by threads. Methods raise StorageError, or errors that `classify` explains."""

    name: str

    def ensure(self, bucket: str) -> bool:
        """Make the bucket unless it exists; returns whether it was made. One of somebody else's is a StorageError."""
        ...

    def exists(self, bucket: str) -> bool:
        """Whether the bucket is there. StorageError when it is, but may not be read."""
        ...

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        """Write one object, whole or not at all; one of this key is replaced."""
        ...

    def remove(self, bucket: str) -> None:
        """Remove the bucket with all that it holds. One that is not found is a success."""
        ...

    def rclone_remote(self, bucket: str, access: Access, /) -> dict[str, object]:
        """The `rclone` mapping of a node spec's mount: the backend's type and options, secrets among them.

        An `access_token` with an `expires_at` (epoch seconds) is the node's to renew: it asks for its spec again.
        """
        ...

    def classify(self, error: Exception) -> Fault:
        """What an exception of any method means: RETRY_LATER or GIVE_UP."""
        ...


def check_bucket_name(name: str, *, store: str = "s3", where: str | None = None) -> None:
    """Raise StorageError for a name that `store` would refuse. Stores without rules of their own have S3's.

    Names in Azure are `account/container`. Rules: cloud.google.com/storage/docs/buckets#naming, and Azure's "Naming and
    referencing containers, blobs, and metadata".
    """
    if store == "azure":
        if not _AZURE_NAME.fullmatch(name):
            fix = "use 3 to 63 lower-case letters, digits and single dashes, with a letter or digit at both ends"
            raise StorageError(f"{name!r} can not be a container's name", where=where, fix=fix)
        return
    is_plain = ".." not in name and not _IPV4.fullmatch(name)
    if store == "gcs":
        fits, also = bool(_GCS_NAME.fullmatch(name)) and "google" not in name, ", underscores"
    else:
        fits, also = bool(_NAME.fullmatch(name)), ""
        is_plain = is_plain and not name.startswith(_RESERVED_STARTS) and not name.endswith(_RESERVED_ENDS)
    if not (is_plain and fits):
        fix = f"use 3 to 63 lower-case letters, digits, dots{also} and dashes, with a letter or digit at both ends"
        raise StorageError(f"{name!r} can not be a bucket's name", where=where, fix=fix)


def check_key(key: str) -> None:
    """Raise StorageError for a key that could lead out of the bucket."""
    parts = PurePosixPath(key).parts
    if not parts or key.startswith("/") or ".." in parts:
        raise StorageError(f"{key!r} can not be an object's name", fix="use a relative path without ..")


class LocalStore:
    """Buckets as directories of `root`. `root_on_node`: where local machines find `root`, if elsewhere."""

    name = "local"

    def __init__(self, root: Path, *, root_on_node: str | None = None) -> None:
        self.root = root
        self._root_on_node = root_on_node or str(root)

    def ensure(self, bucket: str) -> bool:
        check_bucket_name(bucket)
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            (self.root / bucket).mkdir()
        except FileExistsError:
            if not self.exists(bucket):
                raise StorageError(f"{self.root / bucket} is in the way: it is no directory", fix="remove it") from None
            return False
        return True

    def exists(self, bucket: str) -> bool:
        check_bucket_name(bucket)
        return (self.root / bucket).is_dir()

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        check_key(key)
        if not self.exists(bucket):
            raise StorageError(f"there is no bucket {bucket}", fix="create it first")
        target = self.root / bucket / key
        # Jobs write into buckets, and may have put a link there that leads elsewhere on the controller's computer.
        if not target.parent.resolve().is_relative_to((self.root / bucket).resolve()):
            raise StorageError(
                f"{key} lies behind a link out of bucket {bucket}", fix="remove the link, or use another name"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with _new_file(self.root) as half:
            with open(half, "wb") as file:
                shutil.copyfileobj(body, file, 1 << 20)
            os.replace(half, target)

    def remove(self, bucket: str) -> None:
        check_bucket_name(bucket)
        try:
            shutil.rmtree(self.root / bucket)
        except FileNotFoundError:
            return

    def rclone_remote(self, bucket: str, _access: Access = ANYWHERE, /) -> dict[str, object]:
        check_bucket_name(bucket)
        return {"type": "local", "root": self._root_on_node}

    def classify(self, error: Exception) -> Fault:
        passes = isinstance(error, OSError) and error.errno in _PASSING_ERRNOS
        return Fault(
            kind=FaultKind.RETRY_LATER if passes else FaultKind.GIVE_UP,
            reason=Reason.THROTTLED if passes else Reason.BAD_REQUEST,
            code=type(error).__name__,
            message=str(error),
            retry_after_s=RETRY_AFTER_S if passes else None,
        )


@contextmanager
def _new_file(folder: Path) -> Iterator[str]:
    """A file beside the buckets to write to before it is moved to its place; removed if it was not."""
    descriptor, name = tempfile.mkstemp(prefix=".half-", dir=folder)
    os.fchmod(descriptor, 0o644)
    os.close(descriptor)
    try:
        yield name
    finally:
        Path(name).unlink(missing_ok=True)
