"""How fast bytes pass through a stream to a machine, and what that costs the machine's heartbeats.

Two jobs on the local cloud print the time, twice and twenty times a second. Their lines take the same connections as
heartbeats, so their delay until the controller has stored them is measured, with and without downloads beside them. The
throughput of streams is compared with that of a loopback connection between two threads.

    python -m benchmarks.streams
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.latency import running_controller
from benchmarks.machine import print_machine

import perdure.sdk as perdure
from perdure.agent.link.stream_copy import READ_BYTES, receive_all, send_control
from perdure.cli.jobs.enter.stream import StreamEnded, open_stream, raise_if_last
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client

SIZE_BYTES = 256 * 2**20
PARALLEL = 4
SAMPLE_S = 12.0
MAX_DELAY_S = 1.0  # a heartbeat is missed after three intervals, of 5 s each
RATES = (2, 20)  # lines per second


def main() -> int:
    print_machine()
    with running_controller():
        endpoint = discovery.find()
        assert endpoint is not None
        assert endpoint.home is not None
        client = Client(endpoint)
        jobs = [start(client, lines_per_s) for lines_per_s in RATES]
        try:
            busy = measure(client, endpoint.home, jobs)
        finally:
            perdure.jobs.cancel(jobs, graceful=False, client=client)
    return int(max(busy) > MAX_DELAY_S)


def start(client: Client, lines_per_s: int) -> int:
    """A job that prints the time so often, once it runs."""
    ticks = f"import time\nwhile True: print(time.time(), flush=True); time.sleep({1 / lines_per_s})"
    task = {"name": "ticks", "run": f"exec python3 -u -c '{ticks}'"}
    job = int(client.submit("ticks", [task], user="benchmark", key=os.urandom(8).hex())["job_id"])
    while client.job(job)["status"] != "RUNNING":
        time.sleep(0.1)
    return job


def measure(client: Client, home: Path, jobs: list[int]) -> list[float]:
    """Print the figures; returns the delays of the jobs' lines beside downloads, in seconds."""
    name = f"job-{jobs[0]}"
    print(f"loopback, one connection        {rate(loopback):8.0f} MB/s")
    print(f"download by one stream          {rate(lambda: download(client, name)):8.0f} MB/s")
    print(f"upload by one stream            {rate(lambda: upload(client, name)):8.0f} MB/s")
    print(f"opening a stream                {opening_ms(client, name):8.1f} ms")
    all_busy = []
    for job, lines_per_s in zip(jobs, RATES, strict=True):
        print_delays(f"a line of {lines_per_s} per second, idle", delays(home, job))
        with downloads(job):
            busy = delays(home, job)
        print_delays(f"the same, {PARALLEL} downloads", busy)
        all_busy += busy
    return all_busy


def rate(transfer: object) -> float:
    """MB/s of `transfer`, which moves SIZE_BYTES."""
    began = time.perf_counter()
    assert callable(transfer)
    transfer()
    return SIZE_BYTES / (time.perf_counter() - began) / 1e6


def loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send_zeros, args=(server.getsockname(),))
        sender.start()
        link, _ = server.accept()
        with link:
            while link.recv(READ_BYTES):
                pass
        sender.join()


def _send_zeros(address: tuple[str, int]) -> None:
    block = bytes(READ_BYTES)
    with socket.create_connection(address) as link:
        for _ in range(SIZE_BYTES // READ_BYTES):
            link.sendall(block)


def download(client: Client, name: str) -> None:
    stream = open_stream(client, name, "exec", argv=["head", "-c", str(SIZE_BYTES), "/dev/zero"])
    with suppress(StreamEnded):
        receive_all(stream.ws, lambda _: None, lambda frame: raise_if_last(frame, client.clean))
    stream.ws.close()


def upload(client: Client, name: str) -> None:
    stream = open_stream(client, name, "exec", argv=["sh", "-c", "cat > /dev/null"])
    block = bytes(READ_BYTES)
    for _ in range(SIZE_BYTES // READ_BYTES):
        stream.ws.send_binary(block)
    send_control(stream.ws, {"type": "eof"})
    with suppress(StreamEnded):
        receive_all(stream.ws, lambda _: None, lambda frame: raise_if_last(frame, client.clean))
    stream.ws.close()


def opening_ms(client: Client, name: str) -> float:
    """The median time until a stream is open whose program has started."""
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        stream = open_stream(client, name, "exec", argv=["true"])
        taken.append(time.perf_counter() - began)
        stream.ws.close()
    return statistics.median(taken) * 1000


def delays(home: Path, job: int) -> list[float]:
    """How old the job's lines are when the controller has stored them, in seconds, for SAMPLE_S."""
    ages: list[float] = []
    ends_at = time.monotonic() + SAMPLE_S
    with open(home / f"logs/{job}/0/1/0.log", "rb") as log:
        log.seek(0, os.SEEK_END)
        rest = b""
        while time.monotonic() < ends_at:
            *lines, rest = (rest + log.read()).split(b"\n")
            now = time.time()
            for line in lines:
                with suppress(ValueError, IndexError):
                    ages.append(now - float(line.split()[-1]))
            time.sleep(0.002)
    return ages[1:]  # the first one may be a part of a line


@contextmanager
def downloads(job: int) -> Iterator[None]:
    """PARALLEL downloads, each by a process of its own, until the block ends."""
    command = [sys.executable, "-m", "perdure.cli", "jobs", "exec", str(job), "--", "cat /dev/zero"]
    with open(os.devnull, "wb") as nothing:
        processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=nothing) for _ in range(PARALLEL)]
    time.sleep(2.0)  # until all of them have begun
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def print_delays(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{what:32}{median * 1000:8.1f} ms, 99 %: {high * 1000:.1f} ms, at most {ordered[-1] * 1000:.1f} ms")


if __name__ == "__main__":
    sys.exit(main())
