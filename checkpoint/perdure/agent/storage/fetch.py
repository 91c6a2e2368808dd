"""Fetches the task's files to the node: the workdir, uploaded files and folders, and tools that the controller serves.

Every fetch can be repeated from the start, for example by an agent that was killed in the middle.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from perdure.agent.link.channel import Backoff
from perdure.agent.link.client import ControllerClient, ControllerRejected, Unreachable
from perdure.agent.node_spec import NodeSpec
from perdure.agent.workload import shared_workdir
from perdure.agent.workload.environment import home_dir, node_path, workdir_path

MAX_MEMBERS = 10_000_000
MIN_FREE_BYTES = 64 * 2**20  # left free on the disk, for the agent itself
_USER, _PASSWORD = "PERDURE_GIT_USER", "PERDURE_GIT_PASSWORD"
_CREDENTIAL_HELPER = f'credential.helper=!f() {{ echo "username=${_USER}"; echo "password=${_PASSWORD}"; }}; f'


class FetchFailed(Exception):
    """A file cannot be fetched; the message says which, and why."""


class FetchCancelled(Exception):
    """The fetch was cancelled: the files are not needed any more."""


class Fetcher:
    """Retries while the controller does not answer, until it is cancelled."""

    def __init__(
        self,
        client: ControllerClient,
        state_dir: Path,
        *,
        artifacts_dir: Path | None,
        environ: Mapping[str, str],
        log: Callable[[str], None],
        records: Path | None = None,
    ) -> None:
        """`records`: the folder that remembers which files came with which upload, so that a later one of the same
        path replaces them; None: every upload is the first one of its path."""
        self._client = client
        self._records = records
        self._state_dir = state_dir
        self._artifacts_dir = artifacts_dir
        self._environ = environ
        self._cancelled = threading.Event()
        self._log = log

    def fetch_files(self, spec: NodeSpec) -> None:
        """Fetch the workdir, then the uploads. Raises FetchFailed, FetchCancelled, or TokenRevoked."""
        workdir, record = workdir_path(self._environ), self._environ.get("PERDURE_WORKDIR_RECORD")
        if spec.workdir and "upload" in spec.workdir and record:
            self._update(workdir, spec.workdir["upload"], Path(record))
        elif spec.workdir and "git" in spec.workdir:
            if spec.revision:
                self._remove_upload(workdir)
            self._clone(spec.workdir["git"], spec.workdir.get("ref"), workdir)
        elif spec.workdir and "upload" in spec.workdir:
            self._unpack({"path": str(workdir), "upload": spec.workdir["upload"]})
        elif record:
            with shared_workdir.locked(Path(record)):
                pass  # the agent of another job has put its files there
        workdir.mkdir(parents=True, exist_ok=True)
        for upload in spec.uploads:
            self._unpack(upload)

    def cancel(self) -> None:
        """Make every fetch raise FetchCancelled. From any thread."""
        self._cancelled.set()

    def renewed(self) -> Fetcher:
        """One that fetches the same, although this one may be cancelled."""
        other = copy.copy(self)
        other._cancelled = threading.Event()
        return other

    def fetch_mounts(self) -> list[dict[str, Any]]:
        """The spec's mounts with new credentials. Raises TokenRevoked, ControllerRejected, Unreachable."""
        return NodeSpec.parse(self._client.spec()).mounts

    def fetch_home(self) -> dict[str, Any] | None:
        """The spec's home with new credentials. Raises as `fetch_mounts`."""
        return NodeSpec.parse(self._client.spec()).home

    def fetch_tool(self, digest: str) -> Path:
        """Fetch an executable that the controller serves. Raises as `fetch_files`."""
        if self._artifacts_dir is not None:
            local_copy = self._artifacts_dir / digest
            if os.access(local_copy, os.X_OK):
                return local_copy
        path = self._state_dir / "artifacts" / digest
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._download("artifacts", digest, path)
            path.chmod(0o755)
        return path

    def _download(self, kind: str, digest: str, path: Path) -> None:
        backoff = Backoff()
        while not self._cancelled.is_set():
            try:
                self._client.download(kind, digest, path)
                return
            except ControllerRejected as error:
                raise FetchFailed(f"fetching {kind}/{digest[:12]}: {error}") from None
            except Unreachable as error:
                self._log(f"{error}; trying again")
                self._cancelled.wait(backoff.wait_s())
        raise FetchCancelled

    def _update(self, workdir: Path, digest: str, record: Path) -> None:
        """Put the upload into a folder that jobs of a cluster share, unless it holds it already."""
        archive = self._state_dir / "uploads" / digest
        archive.parent.mkdir(parents=True, exist_ok=True)
        with shared_workdir.locked(record):
            if shared_workdir.holds(record, digest):
                return
            self._copy_jobs_files(workdir, record)
            self._download("uploads", digest, archive)
            try:
                shared_workdir.replace(
                    record, digest, workdir, archive, lambda: unpack_folder(archive, workdir, log=self._log)
                )
            except (OSError, tarfile.TarError, EOFError) as error:
                raise FetchFailed(f"unpacking the workdir: {error}") from None
            finally:
                archive.unlink()

    def _copy_jobs_files(self, workdir: Path, record: Path) -> None:
        """Copy what jobs have written to the folder that `workdir` is a copy of, if it is one."""
        source, source_record = (self._environ.get(f"PERDURE_WORKDIR_SOURCE{part}") for part in ("", "_RECORD"))
        if source is None or source_record is None:
            return
        try:
            shared_workdir.copy(Path(source), Path(source_record), workdir, record, self._cancelled.is_set)
        except OSError as error:
            raise FetchFailed(f"copying the workdir: {error}") from None

    def _record_of(self, target: Path) -> Path | None:
        """The record of the uploads of a folder."""
        if self._records is None:
            return None
        return self._records / (hashlib.sha256(os.fsencode(target)).hexdigest()[:32] + ".json")

    def _remove_upload(self, workdir: Path) -> None:
        """A repository takes the place of an upload, with all that is there. Of a replica only."""
        record = self._record_of(workdir)
        if record is not None and record.exists():
            shutil.rmtree(workdir, ignore_errors=True)
            record.unlink()

    def _unpack(self, upload: dict[str, Any]) -> None:
        target = node_path(upload["path"], self._environ)
        archive = self._state_dir / "uploads" / upload["upload"]
        archive.parent.mkdir(parents=True, exist_ok=True)
        record = None if upload.get("is_file") else self._record_of(target)
        if record is not None and shared_workdir.holds(record, upload["upload"]):
            return
        self._download("uploads", upload["upload"], archive)
        try:
            if upload.get("is_file"):
                unpack_file(archive, target)
            elif record is not None:
                record.parent.mkdir(mode=0o700, exist_ok=True)
                shared_workdir.replace(
                    record, upload["upload"], target, archive, lambda: unpack_folder(archive, target, log=self._log)
                )
            else:
                unpack_folder(archive, target, log=self._log)
        except (OSError, tarfile.TarError, EOFError) as error:
            raise FetchFailed(f"unpacking the upload for {upload['path']}: {error}") from None
        finally:
            archive.unlink()

    def _clone(self, url: str, ref: str | None, workdir: Path) -> None:
        """Clone to a temporary folder, then move it into place. A folder with files belongs to the user and stays.

        A user and password in the URL are passed to git in its environment, since anyone can read its arguments. They
        are not stored in the clone.
        """
        address, credentials = _split_credentials(url)
        if workdir.is_dir() and any(workdir.iterdir()):
            if (workdir / ".git").exists():
                return  # cloned by an agent that was killed later
            raise FetchFailed(f"cloning {address}: {workdir} is not empty")
        temporary = workdir.with_name(workdir.name + ".cloning")
        shutil.rmtree(temporary, ignore_errors=True)
        self._git("clone", "--quiet", "--", address, str(temporary), credentials=credentials)
        if ref:
            self._git("-C", str(temporary), "checkout", "--quiet", ref, "--", credentials=credentials)
        if workdir.is_dir():
            workdir.rmdir()
        os.replace(temporary, workdir)

    def _git(self, *arguments: str, credentials: dict[str, str]) -> None:
        env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "HOME": str(home_dir(self._environ)), **credentials}
        command = ["git", *(["-c", "credential.helper=", "-c", _CREDENTIAL_HELPER] if credentials else []), *arguments]
        try:
            done = subprocess.run(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise FetchFailed(f"git cannot be started on this node ({error}): use an image that has it") from None
        if done.returncode != 0:
            what = "clone" if "clone" in arguments else "checkout"
            raise FetchFailed(f"git {what} failed: {done.stderr.strip()[-500:]}")


def _split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """The URL without user and password, and these as variables for `_CREDENTIAL_HELPER`; {} if it has none."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not at:
        return url, {}
    user, _, password = userinfo.partition(":")
    return urlunsplit(parts._replace(netloc=host)), {_USER: unquote(user), _PASSWORD: unquote(password)}


def unpack_folder(archive: Path, target: Path, *, log: Callable[[str], None]) -> None:
    """Unpack a tar.gz into the folder `target`. Members that lie outside of it are skipped and logged.

    Symbolic links that lead out of `target` are made after everything else, so that no member is written through them.
    Raises OSError, also for content that would fill the disk, and TarError.
    """
    target.mkdir(parents=True, exist_ok=True)
    leading_out: list[tarfile.TarInfo] = []
    with tarfile.open(archive, "r:gz") as tar:
        for count, member in enumerate(tar):
            _require_disk_space(count, member, target)
            try:
                kept = _safe_member(member, target)
            except (ValueError, tarfile.TarError) as error:
                if member.issym():
                    leading_out.append(member)
                else:
                    log(f"skipped in {target}: {error}")
                continue
            if hasattr(tarfile, "data_filter"):
                tar.extract(kept, target, filter="fully_trusted")  # `_safe_member` has filtered it
            else:
                tar.extract(kept, target)
    for link in leading_out:
        try:
            _make_link(link, target)
        except ValueError as error:
            log(f"skipped in {target}: {error}")


def unpack_file(archive: Path, target: Path) -> None:
    """Unpack the only file of a tar.gz as `target`, whatever its name is. Raises OSError, TarError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None:
                _require_disk_space(0, member, target.parent)
                with source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file)
                target.chmod(member.mode & 0o755 | 0o600)
                return
    raise tarfile.TarError("the archive contains no file")


def _make_link(link: tarfile.TarInfo, target: Path) -> None:
    """Make a symbolic link, wherever it leads. Raises ValueError if the link itself would lie outside of `target`."""
    root = os.path.realpath(target)
    folder, name = os.path.split(os.path.join(root, link.name.lstrip("/")))
    folder = os.path.realpath(folder)
    if os.path.commonpath([root, folder]) != root or name in ("", ".", ".."):
        raise ValueError(f"{link.name!r} lies outside")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    if os.path.islink(path):  # of an earlier try
        os.unlink(path)
    elif os.path.lexists(path):
        raise ValueError(f"{link.name!r} is a link to {link.linkname!r}, but a file of this name exists")
    os.symlink(link.linkname, path)


def _require_disk_space(count: int, member: tarfile.TarInfo, target: Path) -> None:
    """Refuse archives that would fill the node's disk: a small one can unpack to any size. Raises OSError."""
    if count >= MAX_MEMBERS:
        raise OSError(errno.EFBIG, f"more than {MAX_MEMBERS} files")
    free = shutil.disk_usage(target).free
    if member.size > free - MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"{member.name!r} has {member.size} bytes, and this node has {free} free")


def _safe_member(member: tarfile.TarInfo, target: Path) -> tarfile.TarInfo:
    """The member, safe to unpack. Raises ValueError or TarError when it would leave `target`.

    Python has such a filter since 3.9.17; for older versions this one follows the same rules.
    """
    if hasattr(tarfile, "data_filter"):
        return tarfile.data_filter(member, str(target))
    root = os.path.realpath(target)
    resolved = os.path.realpath(os.path.join(root, member.name))
    if os.path.commonpath([root, resolved]) != root:
        raise ValueError(f"{member.name!r} lies outside")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise ValueError(f"{member.name!r} is neither a file nor a folder nor a link")
    if member.issym() or member.islnk():
        start = os.path.dirname(member.name) if member.issym() else ""
        points_to = os.path.realpath(os.path.join(root, start, member.linkname))
        if os.path.isabs(member.linkname) or os.path.commonpath([root, points_to]) != root:
            raise ValueError(f"{member.name!r} is a link to {member.linkname!r}, outside")
    member.mode = (member.mode & 0o755) | 0o600
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    return member
