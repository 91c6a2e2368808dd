"""The files of an instance's directory, which both halves of the local cloud read and write.

state.json   the instance and its state; in the end its tombstone
spec.json    what the host runs (0600: it contains the attempt's token); removed at the end
host.lock    locked while the launch or the host process lives
commands/    commands to the host: interrupt.json, stop.json, terminate.json. Files, so that a command survives both
             processes
spawn        a socket for requests to start another machine's host (a controller's machine only)
wake         a datagram socket: "read the commands now"
machine/     the machine's disk; removed at the end, but not when the machine is halted
agent.log    the agent's standard output and error
host.log     the host's own output
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Any

STATE = "state.json"
SPEC = "spec.json"
LOCK = "host.lock"
COMMANDS = "commands"
INTERRUPT = "interrupt.json"
STOP = "stop.json"
TERMINATE = "terminate.json"
WAKE_SOCKET = "wake"
SPAWN_SOCKET = "spawn"
MACHINE = "machine"
AGENT_LOG = "agent.log"
HOST_LOG = "host.log"

# `state` in state.json
LAUNCHING = "launching"
RUNNING = "running"
HALTED = "halted"  # nothing runs, and the disk is kept for the next start
ENDED = "ended"

# `reason` in state.json
PREEMPTED = "PREEMPTED"
TERMINATED = "TERMINATED"
CRASHED = "CRASHED"
STOPPED = "STOPPED"

# Paths inside a machine that has its own file system.
NODE_ARTIFACTS = "/run/perdure/artifacts"
NODE_BUCKETS = "/run/perdure/buckets"
NODE_HOME = "/home/perdure"
NODE_STATE = "/var/lib/perdure"

# The environment variable of a controller's machine that names its directory, which contains SPAWN_SOCKET.
PARENT_HOST_VARIABLE = "PERDURE_LOCAL_HOST"


def read_json(path: str) -> dict[str, Any] | None:
    """The object in the file; None if there is no file, or it is not a JSON object (after a power failure)."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace the file atomically. Only its owner may read it."""
    new = f"{path}.{threading.get_native_id()}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(new, path)


def write_command(directory: str, command: str, value: dict[str, Any]) -> None:
    """Write a command and wake the host, if there is one. A host that starts later reads it too."""
    write_json(os.path.join(directory, COMMANDS, command), value)
    # A socket's path has at most 107 bytes; through the directory's descriptor it always fits.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
    ):
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sender.sendto(b"!", f"/proc/self/fd/{folder}/{WAKE_SOCKET}")
        finally:
            os.close(folder)


def read_command(directory: str, command: str) -> dict[str, Any] | None:
    """Read and remove a command; None if there is none. A command written meanwhile stays for the next call."""
    path = os.path.join(directory, COMMANDS, command)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, f"{path}.taken")
        return read_json(f"{path}.taken")
    return None


def start_time(pid: int) -> int | None:
    """When the process started (clock ticks since boot); None if it has ended. Identifies it together with its id."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def remove_all_but_disk(directory: str) -> None:
    """Remove what a halted machine does not need: first the token. Its disk, its state and its lock stay."""
    for name in (SPEC, WAKE_SOCKET, SPAWN_SOCKET, *(os.path.join(COMMANDS, name) for name in (STOP, INTERRUPT))):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, name))


def has_leftovers(directory: str) -> bool:
    """Whether `remove_all_but_tombstone` has not completed."""
    return any(os.path.lexists(os.path.join(directory, name)) for name in (SPEC, MACHINE, COMMANDS, LOCK))


def remove_all_but_tombstone(directory: str) -> None:
    """Remove everything of an instance but state.json and logs that are not empty: first the token, last the lock."""
    import shutil  # slow to import and not needed before the end

    def make_removable(_function: object, path: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def remove(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, name))

    for name in (SPEC, WAKE_SOCKET, SPAWN_SOCKET):
        remove(name)
    for name in (MACHINE, COMMANDS):
        shutil.rmtree(os.path.join(directory, name), onerror=make_removable)
    for name in (AGENT_LOG, HOST_LOG):
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(os.path.join(directory, name)) == 0:
                remove(name)
    remove(LOCK)
