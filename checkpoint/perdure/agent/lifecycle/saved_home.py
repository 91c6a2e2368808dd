"""The home of a cluster's node: what was changed in it is saved to a bucket before the machine ends, and restored.

Each node saves an archive, `r<rank>-<number>.tar`, and then `r<rank>.json`, which names it with its size and digest. So
a save that is cut short leaves the one before. What the machine's image had in the home is left out, as are buckets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from perdure.agent.state_file import read_json, write_json
from perdure.agent.storage.node_storage import HomeNotKept
from perdure.agent.storage.rclone import Remote

_NOT_FOUND_CODES = (3, 4)  # of rclone: no such folder, no such file
_CHUNK_BYTES = 1 << 20


class SavedHome:
    """The home of one node. `baseline`: the file that records what the home had at first.

    `excluded`: paths in the home that are not part of it. `rclone`: returns the binary, or None if there is none.
    """

    def __init__(
        self, home: Path, rank: int, *, baseline: Path, excluded: Collection[Path], rclone: Callable[[], Path | None]
    ) -> None:
        self._home = Path(os.path.realpath(home))
        self._rank = rank
        self._baseline = baseline
        self._excluded = {os.path.realpath(path) for path in excluded}
        self._rclone = rclone

    def record_baseline(self) -> None:
        """Record what the home has before anything of the cluster is in it. Only the first call does so."""
        if not self._baseline.exists():
            write_json(self._baseline, {path: _version(status) for path, status in self._walk()})

    def restore(self, mount: Mapping[str, Any]) -> int:
        """Unpack what this rank has saved, if anything. Returns the number of files. Raises HomeNotKept."""
        bucket = _Bucket(mount, self._rclone)
        try:
            manifest = bucket.read_text(f"r{self._rank}.json")
            if manifest is None:
                return 0
            saved = json.loads(manifest)
            with bucket.reading(saved["archive"]) as source:
                reader = _Digested(source)
                count = self._unpack(reader)
                while reader.read(_CHUNK_BYTES):
                    pass
        except (OSError, ValueError, KeyError, tarfile.TarError) as error:
            raise HomeNotKept(f"restoring the home of rank {self._rank}: {error}") from error
        if reader.sha256.hexdigest() != saved["sha256"]:
            raise HomeNotKept(f"restoring the home of rank {self._rank}: {saved['archive']} is damaged in the bucket")
        return count

    def save(self, mount: Mapping[str, Any]) -> int:
        """Save what has changed since the baseline. Returns the number of files. Raises HomeNotKept."""
        bucket = _Bucket(mount, self._rclone)
        before = read_json(self._baseline) or {}
        name = f"r{self._rank}-{time.time_ns()}.tar"
        changed = [path for path, status in self._walk() if before.get(path) != _version(status)]
        try:
            old = bucket.read_text(f"r{self._rank}.json")
            with bucket.writing(name) as target:
                writer = _Digested(target)
                count = self._pack(writer, changed)
            manifest = {"archive": name, "bytes": writer.count, "sha256": writer.sha256.hexdigest(), "files": count}
            with bucket.writing(f"r{self._rank}.json") as target:
                target.write(json.dumps(manifest).encode())
        except OSError as error:
            raise HomeNotKept(f"saving the home of rank {self._rank}: {error}") from error
        if old is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):  # it costs space until the next save
                bucket.delete(json.loads(old)["archive"])
        return count

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """The folders, files and links of the home, a folder before its content, as paths in the home."""
        device = self._home.stat().st_dev
        for folder, names, files in os.walk(self._home):
            kept = []
            for name in sorted((*names, *files)):
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                except OSError:  # it has just been removed
                    continue
                is_kept = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode)
                if status.st_dev != device or not is_kept or os.path.abspath(path) in self._excluded:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    kept.append(name)
                yield os.path.relpath(path, self._home), status
            names[:] = [name for name in names if name in kept]

    def _pack(self, target: Any, paths: Collection[str]) -> int:
        count = 0
        with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for path in paths:
                try:
                    tar.add(os.path.join(self._home, path), arcname=path, recursive=False)
                    count += 1
                except FileNotFoundError:  # removed meanwhile
                    continue
        return count

    def _unpack(self, source: Any) -> int:
        count, folders = 0, []
        with tarfile.open(fileobj=source, mode="r|") as tar:
            tar.extraction_filter = lambda member, _path: member
            for member in tar:
                target = os.path.normpath(os.path.join(self._home, member.name))
                if os.path.isabs(member.name) or not target.startswith(f"{self._home}{os.sep}"):
                    raise tarfile.TarError(f"{member.name!r} lies outside of the home")
                if member.isdir():
                    os.makedirs(target, exist_ok=True)
                    folders.append((target, member))
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(target)
                    tar.extract(member, self._home, set_attrs=not member.issym())
                count += 1
        for path, member in reversed(folders):  # a folder that is not writable must get its files first
            with contextlib.suppress(OSError):
                os.chmod(path, member.mode)
                os.utime(path, (member.mtime, member.mtime))
        return count


def _version(status: os.stat_result) -> list[int]:
    """What tells one content of a path from another. A folder has none of its own."""
    return [0, 0] if stat.S_ISDIR(status.st_mode) else [status.st_mtime_ns, status.st_size]


class _Digested:
    """A file that is read or written once, from start to end, with its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self.sha256.update(data)
        self.count += len(data)
        return len(data)


class _Bucket:
    """A folder of a bucket: that of a local store as files, any other one through rclone."""

    def __init__(self, mount: Mapping[str, Any], rclone: Callable[[], Path | None]) -> None:
        self._remote = Remote.from_spec(mount)
        self._folder = None if self._remote.bucket_dir is None else Path(self._remote.target)
        self._rclone = rclone

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """The object appears when the block ends; after an error, there is none. Raises OSError."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(self._folder / f".{name}.part", "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._folder / f".{name}.part", self._folder / name)
            return
        process = self._start("rcat", name, stdin=subprocess.PIPE)
        assert process.stdin is not None
        try:
            yield process.stdin
        except BaseException as error:
            process.kill()  # before the end of its input: nothing is stored
            self._explain(process, error, f"writing {name}")
            raise
        self._finish(process, f"writing {name}")

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        """Raises OSError, also if there is no such object."""
        if self._folder is not None:
            with open(self._folder / name, "rb") as file:
                yield file
            return
        process = self._start("cat", name, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            yield process.stdout
        except BaseException as error:
            process.kill()
            self._explain(process, error, f"reading {name}")
            raise
        self._finish(process, f"reading {name}")

    def read_text(self, name: str) -> str | None:
        """The content of a small object; None if there is no such object. Raises OSError."""
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):
                return (self._folder / name).read_text()
            return None
        process = self._start("cat", name, stdout=subprocess.PIPE)
        out, error = process.communicate()
        if process.returncode in _NOT_FOUND_CODES or (process.returncode == 0 and not out):
            return None
        if process.returncode != 0:
            raise OSError(f"reading {name}: {_last_line(error)}")
        return out.decode()

    def delete(self, name: str) -> None:
        """Raises OSError."""
        if self._folder is not None:
            (self._folder / name).unlink()
            return
        self._finish(self._start("deletefile", name), f"deleting {name}")

    def _start(self, verb: str, name: str, **streams: Any) -> subprocess.Popen[bytes]:
        binary = self._rclone()
        if binary is None:
            raise OSError("there is no rclone on this node: install rclone 1.68 or newer")
        options = ["--log-level", "ERROR", "--contimeout", "10s", "--timeout", "60s", "--low-level-retries", "5"]
        command = [str(binary), verb, f"{self._remote.url}/{name}", *options]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
        return subprocess.Popen(command, env=self._remote.environ(), cwd="/", stderr=subprocess.PIPE, **streams)

    @staticmethod
    def _explain(process: subprocess.Popen[bytes], error: BaseException, what: str) -> None:
        """Raise what rclone says, if that explains `error`."""
        text = b""
        with contextlib.suppress(OSError):  # its input cannot be closed properly
            _, text = process.communicate()
        if isinstance(error, OSError) and text.strip():
            raise OSError(f"{what}: {_last_line(text)}") from error

    @staticmethod
    def _finish(process: subprocess.Popen[bytes], what: str) -> None:
        _, error = process.communicate()
        if process.returncode != 0:
            raise OSError(f"{what}: {_last_line(error)}")


def _last_line(text: bytes) -> str:
    return (text.decode(errors="replace").strip().splitlines() or ["rclone failed"])[-1]
