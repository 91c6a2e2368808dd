"""The names of the part files that a Checkpointer writes, and the writer of a part that is not finished.

A part is called `<prefix>-<step, 12 digits>-<rank>of<world size>-<unique>.safetensors`. A file of arrays that several
steps share (`save.parts.unchanged_arrays`) has the name that a part of the first of them would have, with `.shared`
before the suffix; so has one that a process writes for rank 0 (`save.parts.split_writer`), with `.split`. No name is
ever used twice.

Until its content is complete it is called `.tmp-<writer>-<digest of the prefix>-<unique>`, so that the part of a killed
process is never taken for a finished one, and so that other processes can tell whether its writer is still alive. The
digest keeps this name short: a file name has at most 255 bytes, and the prefix may be long.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

_PART = re.compile(r"-(?P<step>\d{12,})-(?P<rank>\d+)of(?P<world>\d+)-[0-9a-f]{8}\.safetensors$")
_REFERRED = re.compile(r"-\d{12,}-\d+of\d+-[0-9a-f]{8}\.(?P<why>shared|split)\.safetensors$")
_MAX_NAME_BYTES = 255
_TEMPORARY = re.compile(
    r"\.tmp-(?P<task>[0-9a-f]*)\.(?P<generation>\d+)\.(?P<machine>[0-9a-f]*)\.(?P<pid>\d+)\.(?P<started>\d+)"
    r"-(?P<prefix>[0-9a-f]{16})-[0-9a-f]{8}"
)


def new_name(prefix: str, step: int, rank: int, world_size: int) -> str:
    """A name for a part that was never used before."""
    return f"{prefix}-{step:012d}-{rank}of{world_size}-{os.urandom(4).hex()}.safetensors"


def new_shared_name(prefix: str, step: int, rank: int, world_size: int) -> str:
    """A name, never used before, for a file that steps from `step` on may share."""
    return f"{prefix}-{step:012d}-{rank}of{world_size}-{os.urandom(4).hex()}.shared.safetensors"


def new_split_name(prefix: str, step: int, rank: int, world_size: int) -> str:
    """A name, never used before, for what a process writes of the state that all have."""
    return f"{prefix}-{step:012d}-{rank}of{world_size}-{os.urandom(4).hex()}.split.safetensors"


def is_possible(name: str) -> bool:
    """Whether a file can have this name."""
    return len(os.fsencode(name)) <= _MAX_NAME_BYTES


def is_referred(name: str, prefix: str | None = None) -> bool:
    """Whether it is the name of a file that parts refer to, of `prefix` or of any series."""
    if prefix is None:
        return _REFERRED.search(name) is not None
    return name.startswith(prefix) and _REFERRED.fullmatch(name[len(prefix) :]) is not None


def is_shared(name: str) -> bool:
    """Whether it is the name of a file that several steps may refer to."""
    match = _REFERRED.search(name)
    return match is not None and match["why"] == "shared"


def is_unique(path: str) -> bool:
    """Whether no file of another content was or will be called like this."""
    return rank_and_world(path) is not None or is_referred(path)


def rank_and_world(name: str) -> tuple[int, int] | None:
    """The rank and the world size in the name of a part; None for the name of anything else."""
    match = _PART.search(name)
    return (int(match["rank"]), int(match["world"])) if match else None


def is_of_checkpointer(path: str) -> bool:
    """Whether this is the path of a part, finished or not, of any series."""
    name = os.path.basename(path)
    return is_unique(name) or _TEMPORARY.fullmatch(name) is not None


class Part(NamedTuple):
    """What the name of a part tells."""

    step: int
    rank: int
    world_size: int


def parse_part(name: str, prefix: str) -> Part | None:
    """What the name of a part of `prefix` tells; None for the name of anything else."""
    match = _PART.fullmatch(name[len(prefix) :]) if name.startswith(prefix) else None
    return Part(int(match["step"]), int(match["rank"]), int(match["world"])) if match else None


@dataclass(frozen=True)
class Writer:
    """The process that writes a part."""

    task: str  # digest of the task's ID; empty if no agent runs the process
    generation: int  # attempt of the task; 0 if no agent runs the process
    machine: str  # digest of the boot and the PID and time namespaces; empty if they cannot be read
    pid: int
    started: int  # clock ticks between the boot and the start of the process

    @classmethod
    def current(cls) -> Writer:
        """This process."""
        generation = os.environ.get("PERDURE_GENERATION", "")
        return cls(
            task=_digest(os.environ.get("SKYPILOT_TASK_ID", "")),
            generation=int(generation) if generation.isdigit() else 0,
            machine=_digest(_machine()),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
        )

    def temporary_name(self, prefix: str) -> str:
        """A name, never used before, for a part of `prefix` while this process writes it."""
        writer = f"{self.task}.{self.generation}.{self.machine}.{self.pid}.{self.started}"
        return f".tmp-{writer}-{_digest(prefix)}-{os.urandom(4).hex()}"

    def is_dead(self, observer: Writer) -> bool:
        """Whether `observer`, which is this process, knows that the writer is not writing any more. False if in doubt.

        On the same machine the process table tells. On another machine an earlier generation of the same task is dead:
        the controller starts a generation only after it has given up the one before.
        """
        if self.machine and self.machine == observer.machine:
            return not _is_running(self.pid, self.started)
        return bool(self.task) and self.task == observer.task and self.generation < observer.generation


def parse_temporary(name: str, prefix: str) -> Writer | None:
    """The writer of an unfinished part of `prefix`; None for the name of anything else."""
    match = _TEMPORARY.fullmatch(name)
    if match is None or match["prefix"] != _digest(prefix):
        return None
    return Writer(match["task"], int(match["generation"]), match["machine"], int(match["pid"]), int(match["started"]))


def _digest(text: str) -> str:
    import hashlib  # needed only once something is saved

    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest() if text else ""


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return boot + os.uname().nodename + os.readlink("/proc/self/ns/pid") + _time_namespace()
    except OSError:
        return ""


def _time_namespace() -> str:
    """Start times are relative to the reader's time namespace. Raises OSError."""
    try:
        return os.readlink("/proc/self/ns/time")
    except FileNotFoundError:
        return ""  # a kernel before 5.6 has none


def _is_running(pid: int, started: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user: it exists, and more cannot be known
    return not started or _started(pid) in (started, None)  # another start time: the PID was reused


def _started(pid: int) -> int | None:
    """Clock ticks between the boot and the start of a process; 0 for one that has ended, None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
        has_ended = state in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) <= 1
        return 0 if has_ended else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None
