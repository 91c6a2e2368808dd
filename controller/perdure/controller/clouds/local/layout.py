"""What lies in an instance's directory, and how it is read and written by both halves of the local cloud.

state.json   what the instance is and where it stands; the tombstone when all is over
spec.json    what its host is to run (0600: it holds the attempt's token); gone at the end
host.lock    held as long as the launch or the host process lives
orders/      what the host is to do: interrupt.json, terminate.json. Files, so that an order survives both sides
launches     a socket: "start the host of this machine" (a controller's machine only)
poke         a datagram socket: "look at the orders now"
machine/     the machine's disk; gone at the end
agent.log    what the agent wrote to its standard output and error; host.log: what the host did
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
ORDERS = "orders"
INTERRUPT = "interrupt.json"
TERMINATE = "terminate.json"
POKE = "poke"
LAUNCHES = "launches"
MACHINE = "machine"
AGENT_LOG = "agent.log"
HOST_LOG = "host.log"

# `state` in state.json
LAUNCHING = "launching"
RUNNING = "running"
ENDED = "ended"

# `reason` in state.json
PREEMPTED = "PREEMPTED"
TERMINATED = "TERMINATED"
CRASHED = "CRASHED"
STOPPED = "STOPPED"

# Where things lie inside a machine that has a file system of its own.
NODE_ARTIFACTS = "/run/perdure/artifacts"
NODE_BUCKETS = "/run/perdure/buckets"
NODE_HOME = "/home/perdure"
NODE_STATE = "/var/lib/perdure"

# In the environment of a controller's machine: its own directory, where its host listens at LAUNCHES.
ASK_HOST = "PERDURE_LOCAL_HOST"


def read_json(path: str) -> dict[str, Any] | None:
    """The object in the file; None when there is no such file, or it is no JSON object (a power cut's remains)."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace the file in one step; readers see the old or the new. Readable by its owner alone."""
    new = f"{path}.{threading.get_native_id()}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(new, path)


def give_order(directory: str, order: str, value: dict[str, Any]) -> None:
    """Write an order and tell the host, if there is one. A host that starts later finds it."""
    write_json(os.path.join(directory, ORDERS, order), value)
    # A socket's path may be 107 bytes long at most; through the directory's descriptor it always fits.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
    ):
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sender.sendto(b"!", f"/proc/self/fd/{folder}/{POKE}")
        finally:
            os.close(folder)


def take_order(directory: str, order: str) -> dict[str, Any] | None:
    """Read an order and remove it; None if there is none. One given meanwhile stays for the next look."""
    path = os.path.join(directory, ORDERS, order)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, f"{path}.taken")
        return read_json(f"{path}.taken")
    return None


def start_time(pid: int) -> int | None:
    """When the process started (clock ticks since boot), which with its id names it for good; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def remove_all_but_tombstone(directory: str) -> None:
    """Leave of an instance what outlives it: state.json, and logs that say something."""
    import shutil  # slow to load, and not needed before the end

    def make_removable(_function: object, path: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    for name in (MACHINE, ORDERS):
        shutil.rmtree(os.path.join(directory, name), onerror=make_removable)
    for name in (POKE, LAUNCHES, SPEC, LOCK):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, name))
    for name in (AGENT_LOG, HOST_LOG):
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(os.path.join(directory, name)) == 0:
                os.remove(os.path.join(directory, name))
