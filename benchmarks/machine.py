"""How fast this machine is: printed beside the figures of every benchmark, because they depend on it.

    python -m benchmarks.machine

No figure is scaled by it. Figures of two machines can be compared only if these lines are about equal.
"""

from __future__ import annotations

import os
import platform
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LOOP = """
x = 0
for i in range(20_000_000):
    x += i * i % 7
"""
"""As a script runs it: its names are global, which takes nearly twice as long as in a function."""

_SYNCS, _SYNC_BYTES = 50, 4096
_WRITE_BYTES, _CHUNK_BYTES = 256 * 2**20, 2**20
_ROUND_TRIPS, _MESSAGE = 2000, b"x" * 64
_STREAM_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Machine:
    """What a machine was and how fast it was when a benchmark began."""

    description: str
    load: float  # of the last minute, when the measurement began
    loop_s: float  # CPU seconds of LOOP
    sync_ms: float  # a write of 4 KiB and its fsync, median
    slow_sync_ms: float  # the slowest tenth of them begins here
    write_mb_s: float  # a new file of 256 MiB, written and synced
    round_trip_us: float  # of 64 bytes over loopback, median
    stream_mb_s: float  # one connection over loopback

    def __str__(self) -> str:
        return (
            f"machine: {self.description}; load {self.load:.1f}\n"
            f"  processor: {self.loop_s:.2f} s of CPU for 20 million steps of `x += i * i % 7`\n"
            f"  disk:      {self.sync_ms:.2f} ms to write and sync 4 KiB (slowest tenth: {self.slow_sync_ms:.2f} ms), "
            f"{self.write_mb_s:.0f} MB/s in sequence\n"
            f"  loopback:  {self.round_trip_us:.0f} µs for a round trip, {self.stream_mb_s:.0f} MB/s in one connection"
        )


def measure(folder: Path | None = None) -> Machine:
    """Measure this machine; takes some seconds. `folder`: on the disk to measure; by default, where temporary files
    are, and with them the homes of the benchmarks' daemons."""
    load = os.getloadavg()[0]
    sync_ms, slow_sync_ms, write_mb_s = _disk(folder)
    round_trip_us, stream_mb_s = _loopback()
    return Machine(_description(), load, _loop_s(), sync_ms, slow_sync_ms, write_mb_s, round_trip_us, stream_mb_s)


def print_machine(folder: Path | None = None) -> Machine:
    """Measure this machine and print its figures. Call it before the benchmark begins."""
    machine = measure(folder)
    print(machine, flush=True)
    return machine


def _description() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}"


def _loop_s() -> float:
    program = compile(LOOP, "<loop>", "exec")
    began = time.process_time()
    exec(program, {})
    return time.process_time() - began


def _disk(folder: Path | None) -> tuple[float, float, float]:
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        block, times_ms = os.urandom(_SYNC_BYTES), []
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(block)
            os.fsync(file.fileno())
            times_ms.append((time.perf_counter() - began) * 1000)
        chunk = os.urandom(_CHUNK_BYTES)
        began = time.perf_counter()
        for _ in range(_WRITE_BYTES // _CHUNK_BYTES):
            file.write(chunk)
        os.fsync(file.fileno())
        mb_s = _WRITE_BYTES / 1e6 / (time.perf_counter() - began)
    return statistics.median(times_ms), statistics.quantiles(times_ms, n=10)[-1], mb_s


def _loopback() -> tuple[float, float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = threading.Thread(target=_answer, args=(server,))
        peer.start()
        with socket.create_connection(server.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times_us = []
            for _ in range(_ROUND_TRIPS):
                began = time.perf_counter()
                connection.sendall(_MESSAGE)
                connection.recv(len(_MESSAGE), socket.MSG_WAITALL)
                times_us.append((time.perf_counter() - began) * 1e6)
            chunk, began = bytes(_CHUNK_BYTES), time.perf_counter()
            for _ in range(_STREAM_BYTES // _CHUNK_BYTES):
                connection.sendall(chunk)
            connection.recv(1)
            mb_s = _STREAM_BYTES / 1e6 / (time.perf_counter() - began)
        peer.join()
    return statistics.median(times_us), mb_s


def _answer(server: socket.socket) -> None:
    """Return each of the messages, then receive the stream and confirm its end."""
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_ROUND_TRIPS):
            connection.sendall(connection.recv(len(_MESSAGE), socket.MSG_WAITALL))
        received, buffer = 0, bytearray(_CHUNK_BYTES)
        while received < _STREAM_BYTES:
            received += connection.recv_into(buffer)
        connection.sendall(b".")


if __name__ == "__main__":
    print_machine()
    sys.exit(0)
