"""The protocol of every bucket store, and the store on this computer's disk. Each other store has its own module."""

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

from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

RETRY_AFTER_S = 15.0
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_GCS_NAME = re.compile(r"(?!goog)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_AZURE_NAME = re.compile(r"[a-z0-9]{3,24}/(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*")
_TRANSIENT_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EMFILE})


class StorageError(Exception):
    """A bucket is unavailable as requested, and no retry will help. `where`: the field; `fix`: what to do."""

    def __init__(self, message: str, *, where: str | None = None, fix: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}: {self.fix}" if self.fix else head


@dataclass(frozen=True)
class Access:
    """The node that mounts a bucket, or the controller itself."""

    cloud: str | None = None  # of its machine; None: any
    writes: bool = True  # False: it only reads
    prefix: str = ""  # below which it works; empty: the whole bucket
    is_controller: bool = False  # not a node: it may use its own credentials


ANYWHERE = Access()


class Store(Protocol):
    """A place for buckets. Thread-safe. Methods raise StorageError, or errors that `classify` explains."""

    name: str

    def ensure(self, bucket: str) -> bool:
        """Create the bucket unless it exists; returns whether it was created.

        Raises StorageError for a bucket that belongs to somebody else.
        """
        ...

    def exists(self, bucket: str) -> bool:
        """Whether the bucket exists. Raises StorageError if it exists but these credentials may not read it."""
        ...

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        """Write one object atomically; replaces an object of the same key."""
        ...

    def remove(self, bucket: str) -> None:
        """Remove the bucket with its contents. Idempotent: succeeds if there is none."""
        ...

    def rclone_remote(self, bucket: str, access: Access, /) -> dict[str, object]:
        """The `rclone` mapping of a node spec's mount: the backend's type and options, secrets among them.

        A node renews an `access_token` that has `expires_at` (epoch seconds) by requesting its spec again.
        """
        ...

    def classify(self, error: Exception) -> Fault:
        """The meaning of an exception that a method raised: RETRY_LATER or GIVE_UP."""
        ...


def check_bucket_name(name: str, *, store: str = "s3", where: str | None = None) -> None:
    """Raise StorageError for a name that `store` would reject. Stores without their own rules have S3's.

    Names in Azure are `account/container`. Rules: cloud.google.com/storage/docs/buckets#naming, and Azure's "Naming and
    referencing containers, blobs, and metadata".
    """
    if store == "azure":
        if not _AZURE_NAME.fullmatch(name):
            fix = "use 3 to 63 lower-case letters, digits and single dashes, with a letter or digit at both ends"
            raise StorageError(f"{name!r} is not a valid container name", where=where, fix=fix)
        return
    is_plain = ".." not in name and not _IPV4.fullmatch(name)
    if store == "gcs":
        fits, also = bool(_GCS_NAME.fullmatch(name)) and "google" not in name, ", underscores"
    else:
        fits, also = bool(_NAME.fullmatch(name)), ""
        is_plain = is_plain and not name.startswith(_RESERVED_PREFIXES) and not name.endswith(_RESERVED_SUFFIXES)
    if not (is_plain and fits):
        fix = f"use 3 to 63 lower-case letters, digits, dots{also} and dashes, with a letter or digit at both ends"
        raise StorageError(f"{name!r} is not a valid bucket name", where=where, fix=fix)


def check_key(key: str) -> None:
    """Raise StorageError for a key that could point outside the bucket."""
    parts = PurePosixPath(key).parts
    if not parts or key.startswith("/") or ".." in parts:
        raise StorageError(f"{key!r} is not a valid object name", fix="use a relative path without ..")


class LocalStore:
    """Buckets as directories in `root`. `root_on_node`: the path of `root` on local machines, if different."""

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
                raise StorageError(f"{self.root / bucket} exists and is not a directory", fix="remove it") from None
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
        # Jobs write into buckets, and may have created a link that points elsewhere on the controller's computer.
        if not target.parent.resolve().is_relative_to((self.root / bucket).resolve()):
            raise StorageError(
                f"{key} is behind a link that leaves bucket {bucket}", fix="remove the link, or use another name"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_file(self.root) as temporary:
            with open(temporary, "wb") as file:
                shutil.copyfileobj(body, file, 1 << 20)
            os.replace(temporary, target)

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
        is_transient = isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS
        return Fault(
            kind=FaultKind.RETRY_LATER if is_transient else FaultKind.GIVE_UP,
            reason=Reason.THROTTLED if is_transient else Reason.BAD_REQUEST,
            code=type(error).__name__,
            message=str(error),
            retry_after_s=RETRY_AFTER_S if is_transient else None,
        )


@contextmanager
def _temporary_file(folder: Path) -> Iterator[str]:
    """A file in `folder` that is removed at the end unless it was moved."""
    descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=folder)
    os.fchmod(descriptor, 0o644)
    os.close(descriptor)
    try:
        yield name
    finally:
        Path(name).unlink(missing_ok=True)
