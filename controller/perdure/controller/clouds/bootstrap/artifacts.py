"""Files served to nodes by digest: the agent as a zipapp, and programs that nodes run (`programs.py`).

The same sources always give the same zipapp, byte for byte: nodes and machine images may cache it by its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.bootstrap.programs import RCLONE, UV, Program

if TYPE_CHECKING:
    from perdure.controller.store.blobs import SqlBlobs

_PACKAGES = ("perdure.checkpoint", "perdure.agent")
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = "import sys\n\nfrom perdure.agent.main import main\n\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can store


PUBLISH_INTERVAL_S = 60.0
"""How often a controller publishes its artifacts for the others."""


@dataclass(frozen=True)
class Artifact:
    """A file served as `/agent/v1/artifacts/<digest>`. `digest`: its sha256, which is also the name of `path`."""

    name: str
    digest: str
    path: Path


def build_artifacts(directory: Path) -> dict[str, Artifact]:
    """All artifacts by name, as files of `directory` named by digest: "agent", and, if they are installed, "rclone" and
    "uv-<processor>".

    Raises SettingsError if a program that was installed with Perdure is not the one that its JSON file names.
    """
    result = {"agent": build_agent(directory)}
    for program in (RCLONE, UV):
        artifact = _build_program(program, directory)
        if artifact is not None:
            result[artifact.name] = artifact
    return result


def _build_program(program: Program, directory: Path) -> Artifact | None:
    """The program as an artifact. Running it and reading all of it would delay each start of a daemon, so the file that
    was found is recorded with its digest."""
    record = directory / f"{program.name}.json"
    known = _read_record(record)
    for candidate in program.candidates():
        identity = _identity(candidate)
        if known.get("file") == identity and (directory / known["digest"]).is_file():
            program.require_known(candidate, known["digest"])
            return Artifact(program.artifact, known["digest"], directory / known["digest"])
        if program.version_of(candidate) >= program.oldest:
            digest = _digest(candidate)
            program.require_known(candidate, digest)
            artifact = _store(program.artifact, candidate, digest, directory)
            with _staged(record) as staged:
                staged.write_text(json.dumps({"file": identity, "digest": artifact.digest}))
            return artifact
    return None


def _read_record(record: Path) -> dict[str, Any]:
    """What `_build_program` recorded; empty if it is missing or damaged."""
    try:
        known = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    is_valid = isinstance(known, dict) and re.fullmatch("[0-9a-f]{64}", str(known.get("digest")))
    return known if is_valid else {}


def _identity(path: Path) -> list[str | int]:
    """Differs for another file, and for the same one after a change."""
    stat = path.stat()
    return [str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns]


def build_agent(directory: Path) -> Artifact:
    """Package the agent and the checkpoint library as one file for any Python from 3.9 on, stored in `directory`."""
    packed = io.BytesIO(_SHEBANG)
    packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed, "w") as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for name, content in sorted(_sources()):
            _add(archive, name, content)
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    path = directory / digest
    if not path.exists():
        with _staged(path) as staged:
            staged.write_bytes(packed.getvalue())
    return Artifact("agent", digest, path)


def find_rclone() -> Path | None:
    """A recent enough rclone: the one installed beside this Python, else the first on PATH. None if there is none."""
    return next((path for path in RCLONE.candidates() if RCLONE.version_of(path) >= RCLONE.oldest), None)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sources() -> Iterator[tuple[str, bytes]]:
    """(name in the archive, content). Includes folders: before 3.13, namespace packages need the entry of theirs."""
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
            elif path.suffix in (".py", ".sh") or path.name == "py.typed" or "sky_templates" in path.parts:
                yield name, path.read_bytes()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # Unix, on whatever system it is built
    entry.external_attr = (0o40755 << 16 | 0x10) if name.endswith("/") else 0o100644 << 16
    entry.compress_type = zipfile.ZIP_STORED if name.endswith("/") else zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _store(name: str, source: Path, digest: str, directory: Path) -> Artifact:
    """Store `source` under its digest in `directory`: a hard link on the same disk, else a copy. Executable."""
    path = directory / digest
    if not path.exists():
        with _staged(path) as staged:
            try:
                os.link(source, staged)
            except OSError:
                shutil.copyfile(source, staged)
                staged.chmod(0o755)
    return Artifact(name, digest, path)


@contextlib.contextmanager
def _staged(path: Path) -> Iterator[Path]:
    """A temporary path to write to. It replaces `path` at the end, so that a reader never sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        staged = Path(folder) / path.name
        yield staged
        os.replace(staged, path)


def publish_artifacts(blobs: SqlBlobs, published: Iterable[Artifact]) -> None:
    """Store artifacts in the database, so that every controller can serve them to nodes."""
    for artifact in published:
        blobs.publish(artifact.digest, artifact.path)
