"""How fast checkpoints are, compared with the limits of this machine and with peers, all from one run.

    python -m benchmarks.checkpoints [--gib 1] [--rounds 5] [--dir DIR]

A state of about 200 fp32 tensors. Every figure is the median of the rounds. In each round all are measured in turn, so
that a busy moment affects all of them. Peers are measured if they are installed (`make frameworks`).

Limits are one copy of the state in memory by one thread, and the disk's own best: several large transfers at once, past
the page cache. Beside them is what a program of a few lines achieves, with plain `write` and `read`.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.checkpoint_peers import Peers, drop_folder_from_cache, drop_from_cache
from benchmarks.machine import print_machine

from perdure.checkpoint import Checkpointer
from perdure.checkpoint.state import direct_io
from perdure.checkpoint.state.buffers import large_buffer
from perdure.checkpoint.state.worker_threads import WorkerThreads

SMALL_ARRAYS = 5000
BLOCK = 8 * 1024 * 1024
Samples = list[tuple[float, float]]  # (seconds, seconds of CPU) of each round
Times = dict[str, Samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure them too")
    parser.add_argument("--dir", default=None, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    print_machine(options.dir and Path(options.dir))
    before = os.getloadavg()
    memory, arrays = make_arrays(options.gib)
    times: Times = {}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="perdure-bench-") as directory:
        bench = Bench(directory, memory, arrays, times, with_peers=options.peers)
        for number in range(options.rounds + 1):
            if number == 1:
                times.clear()  # the first round warms up: memory, page cache, imports
            for measurement in bench.measurements():
                measurement()
                gc.collect()
    report(times, options)
    print(f"  memory that a load in place took besides the arrays: at most {max(bench.extra_mib)} MiB, target 128 MiB")
    print(
        f"  load of this machine before and after: {before[0]:.1f} and {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    )


def make_arrays(gib: float) -> tuple[memoryview, dict[str, np.ndarray[Any, Any]]]:
    """102 large and 96 small fp32 arrays, `gib` GiB in all, and the memory that they lie in, one after another."""
    lengths = {f"layer_{i}": int(gib * 2**30 / 4 / 102) for i in range(102)} | {f"bias_{i}": 2048 for i in range(96)}
    size = 4 * sum(lengths.values())
    memory = large_buffer(-(-size // direct_io.ALIGNMENT) * direct_io.ALIGNMENT)
    rng, arrays, begin = np.random.default_rng(0), {}, 0
    for name, length in lengths.items():
        arrays[name] = np.frombuffer(memory[begin : begin + 4 * length], np.float32)
        rng.random(length, dtype=np.float32, out=arrays[name])
        begin += 4 * length
    return memory, arrays


class Bench:
    """Each measurement adds one sample to `times`."""

    def __init__(
        self, directory: str, memory: memoryview, arrays: dict[str, Any], times: Times, *, with_peers: bool
    ) -> None:
        self.directory, self.flat, self.arrays, self.times = directory, memory, arrays, times
        self.copy = {name: np.empty_like(array) for name, array in arrays.items()}
        self.sync = Checkpointer(self.path_of("sync"), keep=1)
        self.background = Checkpointer(self.path_of("async"), keep=1, asynchronous=True)
        self.many = Checkpointer(self.path_of("many"), keep=1, asynchronous=True)
        self.step = 0
        self.small = {f"small_{i}": np.full(256, i, np.float32) for i in range(SMALL_ARRAYS)}
        self.small_copy = {name: np.empty_like(array) for name, array in self.small.items()}
        self.peers = Peers(directory, arrays, self.small, self.timed) if with_peers else None
        self.extra_mib: list[int] = []  # memory that `load(into=)` took besides the arrays

    def path_of(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def measurements(self) -> Iterator[Callable[[], None]]:
        self.step += 1
        yield self.memcpy
        yield self.ours_async
        yield self.small_memcpy
        yield self.ours_small
        yield self.raw_write
        yield self.ours_sync
        yield self.raw_direct_write
        yield self.raw_read
        # Which one gets new memory first is a matter of luck, and new memory may be slow: on a virtual machine the host
        # may have to provide it.
        yield from (self.ours_load, self.raw_direct_read) if self.step % 2 else (self.raw_direct_read, self.ours_load)
        yield self.ours_load_into
        if self.peers is not None:
            yield from self.peers.measurements()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        self.times.setdefault(name, []).append((time.perf_counter() - began, time.process_time() - cpu_began))

    def memcpy(self) -> None:
        with self.timed("memcpy"):
            for name, array in self.arrays.items():
                np.copyto(self.copy[name], array)

    def small_memcpy(self) -> None:
        with self.timed("memcpy of small arrays"):
            for name, array in self.small.items():
                np.copyto(self.small_copy[name], array)

    def ours_small(self) -> None:
        with self.timed("ours: async save, small, blocking"):
            self.many.save(self.step, (self.peers and self.peers.small_tensors) or self.small)
        with self.timed("ours: async save, small, committed"):
            self.many.wait()

    def raw_write(self) -> None:
        with self.timed("raw write + fsync"), open(self.path_of("raw"), "wb", buffering=0) as file:
            for begin in range(0, len(self.flat), BLOCK):
                file.write(self.flat[begin : begin + BLOCK])
            os.fsync(file.fileno())

    def raw_read(self) -> None:
        drop_from_cache(self.path_of("raw"))
        with self.timed("raw cold read"), open(self.path_of("raw"), "rb", buffering=0) as file:
            data, filled = memoryview(bytearray(len(self.flat))), 0
            while count := file.readinto(data[filled : filled + BLOCK]):
                filled += count

    def raw_direct_write(self) -> None:
        with self.timed("raw write, past the page cache"):
            descriptor = os.open(self.path_of("direct"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            direct_io.enable(descriptor)
            direct_io.reserve(descriptor, len(self.flat))
            self.in_blocks(lambda begin: direct_io.write_at(descriptor, self.flat[begin : begin + BLOCK], begin))
            os.fsync(descriptor)
            os.close(descriptor)

    def raw_direct_read(self) -> None:
        drop_from_cache(self.path_of("direct"))
        with self.timed("raw read, past the page cache"):
            data = large_buffer(len(self.flat))
            descriptor = os.open(self.path_of("direct"), os.O_RDONLY)
            direct_io.enable(descriptor)
            self.in_blocks(lambda begin: direct_io.read_at(descriptor, data[begin : begin + BLOCK], begin))
            os.close(descriptor)
        os.unlink(self.path_of("direct"))
        os.unlink(self.path_of("raw"))

    def in_blocks(self, transfer: Callable[[int], object]) -> None:
        with WorkerThreads(4, "raw") as workers:
            for _ in workers.map(transfer, range(0, len(self.flat), BLOCK), ahead=8):
                pass

    def ours_async(self) -> None:
        with self.timed("ours: async save, blocking"):
            self.background.save(self.step, self.arrays)
        with self.timed("ours: async save, background"):
            self.background.wait()

    def ours_sync(self) -> None:
        with self.timed("ours: save, digested, fsynced, committed"):
            self.sync.save(self.step, self.arrays)
        self.sync.wait()  # the older step is removed in the background, which must not disturb the next measurement

    def ours_load(self) -> None:
        drop_folder_from_cache(self.path_of("sync"))
        with self.timed("ours: verified cold load"):
            self.sync.load()

    def ours_load_into(self) -> None:
        drop_folder_from_cache(self.path_of("sync"))
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
        before = memory_mib("VmRSS")
        with self.timed("ours: verified cold load, in place"):
            self.sync.load(into=self.copy)
        self.extra_mib.append(memory_mib("VmHWM") - before)


def memory_mib(field: str) -> int:
    """A field of this process's status: the memory that it has, or the most that it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) // 1024


# Measurement → the limit that it is compared with, and the target if it is one of ours.
LIMITS: dict[str, tuple[str, float | None]] = {
    "ours: async save, blocking": ("memcpy", 0.75),
    "ours: async save, small, blocking": ("memcpy of small arrays", None),
    "ours: async save, small, committed": ("memcpy of small arrays", None),
    "torch.save + fsync, small": ("memcpy of small arrays", None),
    "DCP async save, blocking": ("memcpy", None),
    "Orbax save, blocking": ("memcpy", None),
    "ours: save, digested, fsynced, committed": ("raw write, past the page cache", 1.15),
    "raw write + fsync": ("raw write, past the page cache", None),
    "torch.save + fsync": ("raw write, past the page cache", None),
    "safetensors save + fsync": ("raw write, past the page cache", None),
    "DCP save": ("raw write, past the page cache", None),
    "Orbax save, committed": ("raw write, past the page cache", None),
    "ours: verified cold load": ("raw read, past the page cache", 1.1),
    "ours: verified cold load, in place": ("raw read, past the page cache", None),
    "raw cold read": ("raw read, past the page cache", None),
    "torch.load, cold, not verified": ("raw read, past the page cache", None),
    "safetensors load, cold, not verified": ("raw read, past the page cache", None),
    "DCP load, cold, not verified": ("raw read, past the page cache", None),
    "Orbax load, cold, not verified": ("raw read, past the page cache", None),
}
GROUPS = {
    "memcpy": "blocked by a save",
    "memcpy of small arrays": f"{SMALL_ARRAYS} arrays of 1 KiB, target 0.050 s blocked",
    "raw write, past the page cache": "saved durably",
    "raw read, past the page cache": "loaded",
}


def report(times: Times, options: argparse.Namespace) -> None:
    print(f"{options.gib:g} GiB of fp32 in 198 arrays, medians of {options.rounds} rounds (least … most), CPU time")
    for limit, title in GROUPS.items():
        print(f"{title}: limit is {limit}")
        row(limit, times[limit], None, None)
        for name, (of, target) in LIMITS.items():
            if of == limit and name in times:
                row(name, times[name], times[limit], target)
    if "torch.load, cold, not verified" in times:
        print("ours beside torch.load, which does not verify")
        ours, theirs = times["ours: verified cold load"], times["torch.load, cold, not verified"]
        row("verified cold load", ours, theirs, 1.0)
    print("ours: async save, in the background")
    row("from its return to the commit", times["ours: async save, background"], None, None)
    print(f"  {'import perdure.checkpoint':<41} {import_s() * 1000:6.1f} ms {'':19}     target 25 ms")


def row(name: str, samples: Samples, limits: Samples | None, target: float | None) -> None:
    seconds = [wall for wall, _ in samples]
    line = f"  {name:<41} {statistics.median(seconds):6.3f} s  ({min(seconds):6.3f} … {max(seconds):6.3f})"
    line += f"  CPU {statistics.median(cpu for _, cpu in samples):5.2f} s"
    if limits is not None:
        # Each sample has a limit measured in the same round.
        ratio = statistics.median(one / other for one, (other, _) in zip(seconds, limits, strict=True))
        line += f"  {ratio:5.2f} x" + (f"  target {target:g} x" if target else "")
    print(line)


def import_s() -> float:
    """Median seconds that the import adds to a bare interpreter."""
    program = "import time; t = time.perf_counter(); import perdure.checkpoint; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


if __name__ == "__main__":
    main()
