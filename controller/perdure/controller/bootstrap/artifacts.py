"""Files served to nodes by digest: the agent as a zipapp, and a static rclone.

The zipapp is the same, byte for byte, for the same sources: nodes and machine images may keep it by its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RCLONE_OLDEST = (1, 68)
"""The first with `vfs/queue` and `vfs/queue-set-expiry`, which flushing needs."""

_PACKAGES = ("perdure.checkpoint", "perdure.agent")
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = "import sys\n\nfrom perdure.agent.main import main\n\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold


@dataclass(frozen=True)
class Artifact:
    """A file served as `/agent/v1/artifacts/<digest>`. `digest`: its sha256, which is also the name of `path`."""

    name: str
    digest: str
    path: Path


def artifacts(directory: Path) -> dict[str, Artifact]:
    """All that can be served, by name, as files of `directory` named by digest: "agent", and "rclone" if found."""
    found = {"agent": build_agent(directory)}
    rclone = find_rclone()
    if rclone is not None:
        found["rclone"] = _keep("rclone", rclone, directory)
    return found


def build_agent(directory: Path) -> Artifact:
    """The agent and the checkpoint library as one file that any Python from 3.9 runs, kept in `directory`."""
    packed = io.BytesIO(_SHEBANG)
    packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed, "w") as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for name, content in sorted(_sources()):
            _add(archive, name, content)
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    path = directory / digest
    if not path.exists():
        with _aside(path) as aside:
            aside.write_bytes(packed.getvalue())
    return Artifact("agent", digest, path)


def find_rclone() -> Path | None:
    """An rclone that is new enough: the one installed beside this Python, else the first of PATH."""
    beside, on_path = Path(sys.executable).with_name("rclone"), shutil.which("rclone")
    for candidate in (beside, Path(on_path) if on_path else None):
        if candidate is not None and os.access(candidate, os.X_OK) and _rclone_version(candidate) >= RCLONE_OLDEST:
            return candidate.resolve()
    return None


def _sources() -> Iterator[tuple[str, bytes]]:
    """(name in the archive, content), folders too: before 3.13 a namespace package is found by its folder's entry."""
    yield "perdure/", b""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError(f"{package} is not installed beside the controller: install perdure again")
        root = Path(spec.submodule_search_locations[0])
        below = package.replace(".", "/")
        yield f"{below}/", b""
        for path in root.rglob("*"):
            if "__pycache__" in path.parts:
                continue
            name = f"{below}/{path.relative_to(root).as_posix()}"
            if path.is_dir():
                yield f"{name}/", b""
            elif path.suffix == ".py" or path.name == "py.typed":
                yield name, path.read_bytes()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # Unix, wherever it is built
    entry.external_attr = (0o40755 << 16 | 0x10) if name.endswith("/") else 0o100644 << 16
    entry.compress_type = zipfile.ZIP_STORED if name.endswith("/") else zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _rclone_version(path: Path) -> tuple[int, ...]:
    try:
        said = subprocess.run([path, "version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.match(r"rclone v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else ()


def _keep(name: str, source: Path, directory: Path) -> Artifact:
    """`source` under its digest in `directory`: a hard link where the disk is the same, else a copy. Executable."""
    with open(source, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = directory / digest
    if not path.exists():
        with _aside(path) as aside:
            try:
                os.link(source, aside)
            except OSError:
                shutil.copyfile(source, aside)
                aside.chmod(0o755)
    return Artifact(name, digest, path)


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A name to write to, moved to `path` when all of it is there: a reader never sees a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        aside = Path(folder) / path.name
        yield aside
        os.replace(aside, path)
