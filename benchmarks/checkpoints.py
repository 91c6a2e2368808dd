"""How fast checkpoints are, compared with the limits of this machine and with peers, all from one run.

    python -m benchmarks.checkpoints [--gib 1] [--rounds 5] [--dir DIR]

A state of about 200 fp32 tensors. Every figure is the median of the rounds. In each round all are measured in turn, so
that a busy moment affects all of them. Peers are measured if they are installed (`make frameworks`).

Limits are what a program of a few lines achieves: one copy of the state in memory by one thread, and one thread's plain
`write` and `read` through the page cache. "Raw, past the page cache" is the disk's own best, several transfers at once.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import shutil
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
from benchmarks.machine import print_machine

from perdure.checkpoint import Checkpointer
from perdure.checkpoint.state import direct_io
from perdure.checkpoint.state.buffers import large_buffer
from perdure.checkpoint.state.worker_threads import WorkerThreads

SMALL_ARRAYS = 5000
BLOCK = 8 * 1024 * 1024
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    print_machine(options.dir and Path(options.dir))
    before = os.getloadavg()
    arrays = make_arrays(options.gib)
    times: Times = {}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="perdure-bench-") as directory:
        bench = Bench(directory, arrays, times)
        for number in range(options.rounds + 1):
            if number == 1:
                times.clear()  # the first round warms up: memory, page cache, imports
            for measurement in bench.measurements():
                measurement()
                gc.collect()
    report(times, options)
    print(
        f"  load of this machine before and after: {before[0]:.1f} and {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    )


def make_arrays(gib: float) -> dict[str, np.ndarray[Any, Any]]:
    """102 large and 96 small fp32 arrays, `gib` GiB in all."""
    rng = np.random.default_rng(0)
    large = int(gib * 2**30 / 4 / 102)
    arrays = {f"layer_{i}": rng.random(large, dtype=np.float32) for i in range(102)}
    return arrays | {f"bias_{i}": rng.random(2048, dtype=np.float32) for i in range(96)}


class Bench:
    """Each measurement adds one sample to `times`."""

    def __init__(self, directory: str, arrays: dict[str, Any], times: Times) -> None:
        self.directory, self.arrays, self.times = directory, arrays, times
        self.copy = {name: np.empty_like(array) for name, array in arrays.items()}
        self.size = sum(array.nbytes for array in arrays.values())
        self.flat = large_buffer(
            -(-self.size // direct_io.ALIGNMENT) * direct_io.ALIGNMENT
        )  # so that no part of the file is sparse
        self.flat[: self.size] = memoryview(np.concatenate(list(arrays.values()))).cast("B")
        self.sync = Checkpointer(self.path_of("sync"), keep=1)
        self.background = Checkpointer(self.path_of("async"), keep=1, asynchronous=True)
        self.many = Checkpointer(self.path_of("many"), keep=1, asynchronous=True)
        self.step = 0
        self.torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
        self.stager: Any = None
        self.orbax: Any = None
        # Created once: DCP's stager identifies its buffers by the tensors.
        self.tensors = {} if self.torch is None else {n: self.torch.from_numpy(a) for n, a in arrays.items()}
        self.small = {f"small_{i}": np.full(256, i, np.float32) for i in range(SMALL_ARRAYS)}
        self.small_copy = {name: np.empty_like(array) for name, array in self.small.items()}
        self.small_tensors = {} if self.torch is None else {n: self.torch.from_numpy(a) for n, a in self.small.items()}
        self.loaded = {} if self.torch is None else {n: self.torch.from_numpy(a) for n, a in self.copy.items()}

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
        yield self.ours_load
        yield self.raw_direct_read
        if self.torch is not None:
            yield self.torch_save
            yield self.torch_load
            yield self.torch_save_small
            yield self.dcp_save
            yield self.dcp_load
            yield self.dcp_async
        if importlib.util.find_spec("safetensors"):
            yield self.safetensors_save
            yield self.safetensors_load
        if importlib.util.find_spec("orbax"):
            yield self.orbax_save
            yield self.orbax_load

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.times.setdefault(name, []).append(time.perf_counter() - began)

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
            self.many.save(self.step, self.small_tensors or self.small)
        with self.timed("ours: async save, small, committed"):
            self.many.wait()

    def torch_save_small(self) -> None:
        with self.timed("torch.save + fsync, small"), open(self.path_of("small"), "wb") as file:
            self.torch.save(self.small_tensors, file)  # type: ignore[union-attr]
            file.flush()
            os.fsync(file.fileno())

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

    def torch_save(self) -> None:
        with self.timed("torch.save + fsync"), open(self.path_of("torch"), "wb") as file:
            self.torch.save(self.tensors, file)  # type: ignore[union-attr]
            file.flush()
            os.fsync(file.fileno())

    def torch_load(self) -> None:
        drop_from_cache(self.path_of("torch"))
        with self.timed("torch.load, cold, not verified"):
            self.torch.load(self.path_of("torch"))  # type: ignore[union-attr]
        os.unlink(self.path_of("torch"))

    def safetensors_save(self) -> None:
        from safetensors.numpy import save_file

        with self.timed("safetensors save + fsync"):
            save_file(self.arrays, self.path_of("safetensors"))
            sync_file(self.path_of("safetensors"))

    def safetensors_load(self) -> None:
        from safetensors.numpy import load_file

        drop_from_cache(self.path_of("safetensors"))
        with self.timed("safetensors load, cold, not verified"):
            load_file(self.path_of("safetensors"))
        os.unlink(self.path_of("safetensors"))

    def dcp_save(self) -> None:
        import torch.distributed.checkpoint as dcp

        with self.timed("DCP save"):
            dcp.save(self.tensors, checkpoint_id=self.path_of("dcp"), no_dist=True)

    def dcp_load(self) -> None:
        import torch.distributed.checkpoint as dcp

        drop_folder_from_cache(self.path_of("dcp"))
        with self.timed("DCP load, cold, not verified"):
            dcp.load(self.loaded, checkpoint_id=self.path_of("dcp"), no_dist=True)
        shutil.rmtree(self.path_of("dcp"))

    def dcp_async(self) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        if self.stager is None:
            options = StagingOptions(
                use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
            self.stager = DefaultStager(options)
        with self.timed("DCP async save, blocking"):
            future = dcp.async_save(
                self.tensors, checkpoint_id=self.path_of("dcp-async"), no_dist=True, async_stager=self.stager
            )
        getattr(future, "upload_completion", future).result()
        shutil.rmtree(self.path_of("dcp-async"))

    def orbax_save(self) -> None:
        import jax.numpy as jnp
        import orbax.checkpoint as ocp

        if self.orbax is None:  # JAX's arrays never change, so Orbax copies nothing before it returns
            self.orbax = ocp.StandardCheckpointer(), {name: jnp.asarray(a) for name, a in self.arrays.items()}
        saver, arrays = self.orbax
        with self.timed("Orbax save, committed"):
            with self.timed("Orbax save, blocking"):
                saver.save(self.path_of("orbax"), arrays)
            saver.wait_until_finished()

    def orbax_load(self) -> None:
        saver, _ = self.orbax
        drop_folder_from_cache(self.path_of("orbax"))
        with self.timed("Orbax load, cold, not verified"):
            saver.restore(self.path_of("orbax"))
        shutil.rmtree(self.path_of("orbax"))


def sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def drop_folder_from_cache(folder: str) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            drop_from_cache(os.path.join(directory, name))


def drop_from_cache(path: str) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


# Measurement → the limit that it is compared with, and the target if it is one of ours.
LIMITS: dict[str, tuple[str, float | None]] = {
    "ours: async save, blocking": ("memcpy", 1.2),
    "ours: async save, small, blocking": ("memcpy of small arrays", None),
    "ours: async save, small, committed": ("memcpy of small arrays", None),
    "torch.save + fsync, small": ("memcpy of small arrays", None),
    "DCP async save, blocking": ("memcpy", None),
    "Orbax save, blocking": ("memcpy", None),
    "ours: save, digested, fsynced, committed": ("raw write + fsync", 1.1),
    "raw write, past the page cache": ("raw write + fsync", None),
    "torch.save + fsync": ("raw write + fsync", None),
    "safetensors save + fsync": ("raw write + fsync", None),
    "DCP save": ("raw write + fsync", None),
    "Orbax save, committed": ("raw write + fsync", None),
    "ours: verified cold load": ("raw cold read", 1.15),
    "raw read, past the page cache": ("raw cold read", None),
    "torch.load, cold, not verified": ("raw cold read", None),
    "safetensors load, cold, not verified": ("raw cold read", None),
    "DCP load, cold, not verified": ("raw cold read", None),
    "Orbax load, cold, not verified": ("raw cold read", None),
}
GROUPS = {
    "memcpy": "blocked by a save",
    "memcpy of small arrays": f"{SMALL_ARRAYS} arrays of 1 KiB, target 0.050 s blocked",
    "raw write + fsync": "saved durably",
    "raw cold read": "loaded",
}


def report(times: Times, options: argparse.Namespace) -> None:
    print(f"{options.gib:g} GiB of fp32 in 198 arrays, medians of {options.rounds} rounds (least … most)")
    for limit, title in GROUPS.items():
        print(f"{title}: limit is {limit}")
        row(limit, times[limit], None, None)
        for name, (of, target) in LIMITS.items():
            if of == limit and name in times:
                row(name, times[name], times[limit], target)
    print("ours: async save, in the background")
    row("from its return to the commit", times["ours: async save, background"], None, None)
    print(f"  {'import perdure.checkpoint':<41} {import_s() * 1000:6.1f} ms {'':19}     target 25 ms")


def row(name: str, samples: list[float], limits: list[float] | None, target: float | None) -> None:
    line = f"  {name:<41} {statistics.median(samples):6.3f} s  ({min(samples):6.3f} … {max(samples):6.3f})"
    if limits is not None:
        # Each sample has a limit measured in the same round.
        ratio = statistics.median(one / other for one, other in zip(samples, limits, strict=True))
        line += f"  {ratio:5.2f} x" + (f"  target {target:g} x" if target else "")
    print(line)


def import_s() -> float:
    """Median seconds that the import adds to a bare interpreter."""
    program = "import time; t = time.perf_counter(); import perdure.checkpoint; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


if __name__ == "__main__":
    main()
