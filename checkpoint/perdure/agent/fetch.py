"""Puts the task's files on the node: the workdir, uploaded files and folders, and tools that the controller serves.

Everything may be done again from the start: an agent that was killed in the middle does it again.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from perdure.agent.channel import Backoff
from perdure.agent.controller import Controller, Refused, Unreachable
from perdure.agent.environment import WORKDIR, home, node_path
from perdure.agent.spec import NodeSpec

MOST_MEMBERS = 10_000_000
SPARED_BYTES = 64 * 2**20  # of the disk, for the agent itself
_USER, _PASSWORD = "PERDURE_GIT_USER", "PERDURE_GIT_PASSWORD"
_HELPER = f'credential.helper=!f() {{ echo "username=${_USER}"; echo "password=${_PASSWORD}"; }}; f'


class FetchFailed(Exception):
    """A file can not be had; the text says which, and why."""


class Abandoned(Exception):
    """Nobody waits for the files any more."""


class Fetcher:
    """Waits for a controller that does not answer, without end, until it is abandoned."""

    def __init__(
        self,
        controller: Controller,
        state_dir: Path,
        *,
        artifacts_dir: Path | None,
        environ: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        self._controller = controller
        self._state_dir = state_dir
        self._artifacts_dir = artifacts_dir
        self._environ = environ
        self._abandoned = threading.Event()
        self._log = log

    def files(self, spec: NodeSpec) -> None:
        """The workdir, then the uploads. Raises FetchFailed, Abandoned, or WrittenOff."""
        workdir = home(self._environ) / WORKDIR
        if spec.workdir and "git" in spec.workdir:
            self._clone(spec.workdir["git"], spec.workdir.get("ref"), workdir)
        elif spec.workdir and "upload" in spec.workdir:
            self._unpack({"path": str(workdir), "upload": spec.workdir["upload"]})
        workdir.mkdir(parents=True, exist_ok=True)
        for upload in spec.uploads:
            self._unpack(upload)

    def abandon(self) -> None:
        """Nobody waits for the files any more. From any thread."""
        self._abandoned.set()

    def mounts(self) -> list[dict[str, Any]]:
        """The spec's mounts, with credentials that are new. Raises WrittenOff, Refused, Unreachable."""
        return NodeSpec.parse(self._controller.spec()).mounts

    def tool(self, digest: str) -> Path:
        """An executable that the controller serves. Raises as `files`."""
        if self._artifacts_dir is not None:
            at_hand = self._artifacts_dir / digest
            if os.access(at_hand, os.X_OK):
                return at_hand
        path = self._state_dir / "artifacts" / digest
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._download("artifacts", digest, path)
            path.chmod(0o755)
        return path

    def _download(self, kind: str, digest: str, path: Path) -> None:
        backoff = Backoff()
        while not self._abandoned.is_set():
            try:
                self._controller.download(kind, digest, path)
                return
            except Refused as error:
                raise FetchFailed(f"fetching {kind}/{digest[:12]}: {error}") from None
            except Unreachable as error:
                self._log(f"{error}; trying again")
                self._abandoned.wait(backoff.wait_s())
        raise Abandoned

    def _unpack(self, upload: dict[str, Any]) -> None:
        target = node_path(upload["path"], self._environ)
        packed = self._state_dir / "uploads" / upload["upload"]
        packed.parent.mkdir(parents=True, exist_ok=True)
        self._download("uploads", upload["upload"], packed)
        try:
            if upload.get("is_file"):
                unpack_file(packed, target)
            else:
                unpack_folder(packed, target, log=self._log)
        except (OSError, tarfile.TarError, EOFError) as error:
            raise FetchFailed(f"unpacking the upload for {upload['path']}: {error}") from None
        finally:
            packed.unlink()

    def _clone(self, url: str, ref: str | None, workdir: Path) -> None:
        """Clone aside, then move into place: a folder that has files in it is the user's, and is not replaced.

        A user and password in the URL reach git by its environment, never by the arguments that all may read, and are
        not kept in the clone.
        """
        address, credentials = _split(url)
        if workdir.is_dir() and any(workdir.iterdir()):
            if (workdir / ".git").exists():
                return  # done by this agent before it was killed
            raise FetchFailed(f"cloning {address}: {workdir} is not empty")
        aside = workdir.with_name(workdir.name + ".cloning")
        shutil.rmtree(aside, ignore_errors=True)
        self._git("clone", "--quiet", "--", address, str(aside), credentials=credentials)
        if ref:
            self._git("-C", str(aside), "checkout", "--quiet", ref, "--", credentials=credentials)
        if workdir.is_dir():
            workdir.rmdir()
        os.replace(aside, workdir)

    def _git(self, *arguments: str, credentials: dict[str, str]) -> None:
        env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "HOME": str(home(self._environ)), **credentials}
        command = ["git", *(["-c", "credential.helper=", "-c", _HELPER] if credentials else []), *arguments]
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
            raise FetchFailed(f"git can not be started on this node ({error}): use an image that has it") from None
        if done.returncode != 0:
            what = "clone" if "clone" in arguments else "checkout"
            raise FetchFailed(f"git {what} failed: {done.stderr.strip()[-500:]}")


def _split(url: str) -> tuple[str, dict[str, str]]:
    """A URL without its user and password, and those as variables for `_HELPER`; {} if it has none, or is no HTTP."""
    parts = urlsplit(url)
    who, at, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not at:
        return url, {}
    user, _, password = who.partition(":")
    return urlunsplit(parts._replace(netloc=host)), {_USER: unquote(user), _PASSWORD: unquote(password)}


def unpack_folder(packed: Path, target: Path, *, log: Callable[[str], None]) -> None:
    """Unpack a tar.gz into the folder `target`. What would leave it is left out, and logged.

    Raises OSError, also for what would fill the disk, and TarError.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, "r:gz") as tar:
        for count, member in enumerate(tar):
            _require_room(count, member, target)
            try:
                kept = _contained(member, target)
            except (ValueError, tarfile.TarError) as error:
                log(f"left out of {target}: {error}")
                continue
            if hasattr(tarfile, "data_filter"):
                tar.extract(kept, target, filter="fully_trusted")  # `_contained` has filtered it
            else:
                tar.extract(kept, target)


def unpack_file(packed: Path, target: Path) -> None:
    """Unpack the one file of a tar.gz as `target`, whatever its name in there. Raises OSError, TarError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, "r:gz") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None:
                _require_room(0, member, target.parent)
                with source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file)
                target.chmod(member.mode & 0o755 | 0o600)
                return
    raise tarfile.TarError("there is no file in it")


def _require_room(count: int, member: tarfile.TarInfo, target: Path) -> None:
    """Little can be packed that is endless when it is unpacked. The node's disk is for the job. Raises OSError."""
    if count >= MOST_MEMBERS:
        raise OSError(errno.EFBIG, f"more than {MOST_MEMBERS} files")
    free = shutil.disk_usage(target).free
    if member.size > free - SPARED_BYTES:
        raise OSError(errno.ENOSPC, f"{member.name!r} is {member.size} bytes large, and {free} are free on this node")


def _contained(member: tarfile.TarInfo, target: Path) -> tarfile.TarInfo:
    """The member as it may be unpacked. Raises ValueError or TarError when it would leave `target`.

    Python has such a filter since 3.9.17; an older one gets ours, which follows the same rules.
    """
    if hasattr(tarfile, "data_filter"):
        return tarfile.data_filter(member, str(target))
    root = os.path.realpath(target)
    inside = os.path.realpath(os.path.join(root, member.name))
    if os.path.commonpath([root, inside]) != root:
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
