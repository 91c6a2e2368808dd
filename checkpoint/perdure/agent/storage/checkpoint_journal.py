"""The agent's side of `$PERDURE_RUN_DIR/checkpoints.jsonl`: one JSON object per line, appended and never rewritten.

The checkpoint library appends `committed` and `loaded` lines (`perdure.checkpoint.durability.journal` has the fields);
the agent alone appends `durable` ones. The line number is the sequence number that the controller acknowledges, so a
line that does not parse, such as the rest of a torn write, has no number for either side. `durability_watcher` and
`link.checkpoint_stream` read it.

The workload may write anything into the file, so nothing in it may stop a reader.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.checkpoint.durability.file_version import UNKNOWN, FileVersion
from perdure.checkpoint.durability.journal import COMMITTED, DURABLE, LOADED
from perdure.checkpoint.format import part_names

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 8 << 20  # names and versions of about 50,000 files
MAX_PATH_BYTES = 4096  # PATH_MAX
FIELDS = ("step", "state", "path", "at")
OPTIONAL_FIELDS = ("total_steps",)
_STATES = frozenset({COMMITTED, DURABLE, LOADED, "saved"})  # "saved": as older libraries say "committed"
_END_OF_STEPS = 1 << 63
_END_OF_TIME = 253_402_300_800.0  # the year 10000
_MAX_DIGITS = 20


@dataclass(frozen=True)
class CommittedCheckpoint:
    """A `committed` line."""

    step: int
    path: str  # of its manifest
    files: tuple[str, ...] = ()  # absolute paths of its data files
    versions: tuple[FileVersion | None, ...] = ()  # of `files`; None: the name is never used twice
    total_steps: int | None = None


class CheckpointJournal:
    """Reads each `committed` line once and appends `durable` lines. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = LineReader(path)
        self._durable: set[str] = set()  # manifests that a `durable` line names

    def read_committed(self) -> list[CommittedCheckpoint]:
        """The checkpoints committed since the last call that no line calls durable; the first call reads everything.

        A journal that does not exist, or cannot be read now, has no new lines.
        """
        committed: dict[str, CommittedCheckpoint] = {}
        ends_at = file_size(self._path)
        while self._lines.offset < ends_at and (lines := self._lines.next_lines()) is not None:
            for value in filter(None, map(_parse, lines)):
                if value["state"] == DURABLE:
                    self._durable.add(value["path"])
                elif value["state"] == COMMITTED:
                    checkpoint = _committed(value)
                    if checkpoint is not None:
                        committed.pop(checkpoint.path, None)
                        committed[checkpoint.path] = checkpoint
        return [checkpoint for path, checkpoint in committed.items() if path not in self._durable]

    def append_durable(self, checkpoint: CommittedCheckpoint) -> None:
        """Append the `durable` line of `checkpoint`, unless there is one. Raises OSError."""
        if checkpoint.path in self._durable:
            return
        line: dict[str, Any] = {
            "step": checkpoint.step, "state": DURABLE, "path": checkpoint.path, "at": time.time()
        }  # fmt: skip
        if checkpoint.total_steps is not None:
            line["total_steps"] = checkpoint.total_steps
        with open(self._path, "ab+", buffering=0) as file:
            data = json.dumps(line).encode() + b"\n"
            if not _ends_a_line(file.fileno()):
                data = b"\n" + data  # a torn write must not swallow this line
            if file.write(data) != len(data):
                raise OSError(f"{self._path}: the disk took only a part of a line")
        self._durable.add(checkpoint.path)


class LineReader:
    """The complete lines of a growing file, each once. A line longer than `MAX_LINE_BYTES` is skipped."""

    def __init__(self, path: Path) -> None:
        self.offset = 0  # bytes read so far
        self._path = path
        self._partial = b""
        self._skips = False  # the line that is being read is too long

    @property
    def consumed_bytes(self) -> int:
        """Bytes of the file up to the end of the last complete line."""
        return self.offset - len(self._partial)

    def next_lines(self) -> list[bytes] | None:
        """The lines that end in the next `READ_BYTES`; None at the end of the file."""
        data = read_from(self._path, self.offset)
        if not data:
            return None
        self.offset += len(data)
        head, newline, rest = data.partition(b"\n")
        if not newline:
            self._partial += b"" if self._skips else data
            lines = []
        else:
            lines = [] if self._skips else [self._partial + head]
            *complete, self._partial = rest.split(b"\n")
            lines += complete
            self._skips = False
        if len(self._partial) > MAX_LINE_BYTES:
            self._partial, self._skips = b"", True
        return [line for line in lines if len(line) <= MAX_LINE_BYTES]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The fields of a line that the controller receives; None for what a torn write left, or for an invalid line."""
    value = _parse(line)
    if value is None:
        return None
    fields = {name: value[name] for name in (*FIELDS, *OPTIONAL_FIELDS) if name in value}
    # A file name may have any bytes; what the controller receives is text.
    return {**fields, "path": value["path"].encode("utf-8", "replace").decode()}


def read_from(path: Path, offset: int) -> bytes:
    """At most `READ_BYTES` from `offset`; nothing when the file is missing, cannot be read, or is no regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return os.pread(descriptor, READ_BYTES, offset) if is_file else b""
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def file_size(path: Path) -> int:
    """In bytes; 0 for a file that is missing."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line as an object whose `FIELDS` and `OPTIONAL_FIELDS` are valid; None for any other line."""
    try:
        value = json.loads(line, parse_int=_integer)
        is_valid = (
            _is_number(value["step"], _END_OF_STEPS)
            and value["state"] in _STATES
            and bool(value["path"])
            and _is_path(value["path"])
            and isinstance(value["at"], (int, float))
            and not isinstance(value["at"], bool)
            and math.isfinite(value["at"])
            and 0 <= value["at"] < _END_OF_TIME
            and ("total_steps" not in value or _is_number(value["total_steps"], _END_OF_STEPS))
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError):
        return None
    return value if is_valid else None


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # some Python versions take hours for a million digits
        raise ValueError("the number is too long")
    return int(digits)


def _is_number(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _is_path(value: object) -> bool:
    """Whether it can be the path of a file. Raises UnicodeEncodeError, a ValueError, for half a character."""
    return isinstance(value, str) and "\0" not in value and len(os.fsencode(value)) <= MAX_PATH_BYTES


def _committed(value: dict[str, Any]) -> CommittedCheckpoint | None:
    """The checkpoint of a valid line; None if its files are malformed."""
    names, directory, versions = value.get("files") or [], value.get("directory", ""), value.get("versions")
    try:
        if not isinstance(names, list) or not all(map(_is_path, (directory, *names))):
            return None
    except ValueError:
        return None
    if not isinstance(versions, list) or len(versions) != len(names):
        versions = [UNKNOWN] * len(names)  # by an older library
    return CommittedCheckpoint(
        step=value["step"],
        path=value["path"],
        files=tuple(os.path.join(directory, name) for name in names),
        versions=tuple(
            None if part_names.rank_and_world(name) else FileVersion.from_fields(fields)
            for name, fields in zip(names, versions)
        ),
        total_steps=value.get("total_steps"),
    )


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
