"""How fast checkpoints are, beside the limits of this machine and beside peers, all from one run.

    python -m benchmarks.checkpoints [--gib 1] [--rounds 5] [--dir DIR]

A state of about 200 fp32 tensors. Every figure is the median of the rounds, which take turns (limit, ours, peers, limit
…) so that a busy moment meets all of them. Peers are measured where they are installed.
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
from typing import Any

import numpy as np

from holdfast.checkpoint import Checkpointer

BLOCK = 8 * 1024 * 1024
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    arrays = state_of(options.gib)
    times: Times = {}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="holdfast-bench-") as directory:
        bench = Bench(directory, arrays, times)
        for number in range(options.rounds + 1):
            if number == 1:
                times.clear()  # the first round warms up: memory, page cache, imports
            for measure in bench.measures():
                measure()
                gc.collect()
    report(times, options)


def state_of(gib: float) -> dict[str, np.ndarray[Any, Any]]:
    """102 large and 96 small fp32 arrays, `gib` GiB in all."""
    rng = np.random.default_rng(0)
    large = int(gib * 2**30 / 4 / 102)
    arrays = {f"layer_{i}": rng.random(large, dtype=np.float32) for i in range(102)}
    return arrays | {f"bias_{i}": rng.random(2048, dtype=np.float32) for i in range(96)}


class Bench:
    """Each measure adds one sample to `times`."""

    def __init__(self, directory: str, arrays: dict[str, Any], times: Times) -> None:
        self.directory, self.arrays, self.times = directory, arrays, times
        self.copy = {name: np.empty_like(array) for name, array in arrays.items()}
        self.flat = memoryview(np.concatenate(list(arrays.values()))).cast("B")
        self.sync = Checkpointer(self.place("sync"), keep=1)
        self.background = Checkpointer(self.place("async"), keep=1, asynchronous=True)
        self.step = 0
        self.torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
        self.stager: Any = None
        self.orbax: Any = None
        # Made once: DCP's stager knows its buffers again by the tensors.
        self.tensors = {} if self.torch is None else {n: self.torch.from_numpy(a) for n, a in arrays.items()}

    def place(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def measures(self) -> Iterator[Callable[[], None]]:
        self.step += 1
        yield self.memcpy
        yield self.ours_async
        yield self.raw_write
        yield self.ours_sync
        yield self.raw_read
        yield self.ours_load
        if self.torch is not None:
            yield self.torch_save
            yield self.dcp_save
            yield self.dcp_async
        if importlib.util.find_spec("orbax"):
            yield self.orbax_save

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.times.setdefault(name, []).append(time.perf_counter() - began)

    def memcpy(self) -> None:
        with self.timed("memcpy"):
            for name, array in self.arrays.items():
                np.copyto(self.copy[name], array)

    def raw_write(self) -> None:
        with self.timed("raw write + fsync"), open(self.place("raw"), "wb", buffering=0) as file:
            for begin in range(0, len(self.flat), BLOCK):
                file.write(self.flat[begin : begin + BLOCK])
            os.fsync(file.fileno())

    def raw_read(self) -> None:
        forget(self.place("raw"))
        with self.timed("raw cold read"), open(self.place("raw"), "rb", buffering=0) as file:
            data, filled = memoryview(bytearray(len(self.flat))), 0
            while count := file.readinto(data[filled : filled + BLOCK]):
                filled += count
        os.unlink(self.place("raw"))

    def ours_async(self) -> None:
        with self.timed("ours: async save, blocking"):
            self.background.save(self.step, self.arrays)
        with self.timed("ours: async save, rest"):
            self.background.wait()

    def ours_sync(self) -> None:
        with self.timed("ours: save, digested, fsynced, committed"):
            self.sync.save(self.step, self.arrays)
        self.sync.wait()  # the step before is removed behind training; here the next measure must not share its disk

    def ours_load(self) -> None:
        for entry in os.scandir(self.place("sync")):
            if entry.is_file():
                forget(entry.path)
        with self.timed("ours: verified cold load"):
            self.sync.load()

    def torch_save(self) -> None:
        with self.timed("torch.save + fsync"), open(self.place("torch"), "wb") as file:
            self.torch.save(self.tensors, file)  # type: ignore[union-attr]
            file.flush()
            os.fsync(file.fileno())
        os.unlink(self.place("torch"))

    def dcp_save(self) -> None:
        import torch.distributed.checkpoint as dcp

        with self.timed("DCP save"):
            dcp.save(self.tensors, checkpoint_id=self.place("dcp"), no_dist=True)
        shutil.rmtree(self.place("dcp"))

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
                self.tensors, checkpoint_id=self.place("dcp-async"), no_dist=True, async_stager=self.stager
            )
        getattr(future, "upload_completion", future).result()
        shutil.rmtree(self.place("dcp-async"))

    def orbax_save(self) -> None:
        import jax.numpy as jnp
        import orbax.checkpoint as ocp

        if self.orbax is None:  # JAX's arrays never change, so Orbax copies nothing before it returns
            self.orbax = ocp.StandardCheckpointer(), {name: jnp.asarray(a) for name, a in self.arrays.items()}
        saver, arrays = self.orbax
        with self.timed("Orbax save, committed"):
            with self.timed("Orbax save, blocking"):
                saver.save(self.place("orbax"), arrays)
            saver.wait_until_finished()
        shutil.rmtree(self.place("orbax"))


def forget(path: str) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


LIMITS = {
    "ours: async save, blocking": ("memcpy", 1.2),
    "DCP async save, blocking": ("memcpy", None),
    "Orbax save, blocking": ("memcpy", None),
    "ours: save, digested, fsynced, committed": ("raw write + fsync", 1.1),
    "torch.save + fsync": ("raw write + fsync", None),
    "DCP save": ("raw write + fsync", None),
    "Orbax save, committed": ("raw write + fsync", None),
    "ours: verified cold load": ("raw cold read", 1.15),
}


def report(times: Times, options: argparse.Namespace) -> None:
    print(f"{options.gib:g} GiB of fp32 in 198 arrays, medians of {options.rounds} rounds (least … most)")
    for name, samples in times.items():
        middle = statistics.median(samples)
        line = f"  {name:<42} {middle:7.3f} s  ({min(samples):.3f} … {max(samples):.3f})"
        if name in LIMITS:
            limit, target = LIMITS[name]
            # Rounds take turns, so each sample has a limit measured beside it.
            ratio = statistics.median(one / other for one, other in zip(samples, times[limit], strict=True))
            wanted = f", target {target:g}" if target else ""
            line += f"  {ratio:5.2f} x {limit}{wanted}"
        print(line)
    print(f"  {'import holdfast.checkpoint':<42} {import_s() * 1000:7.1f} ms  (target 25)")


def import_s() -> float:
    """Median seconds that the import adds to a bare interpreter."""
    program = "import time; t = time.perf_counter(); import holdfast.checkpoint; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


if __name__ == "__main__":
    main()
