"""`python -m benchmarks.packing`: what packing a working directory costs, beside what its limit costs in the same run.

Three trees: 200,000 small files, one sparse file of 10 GB, and one file of random bytes. The limit is `tar` piped into
`gzip` at the same level, which does the same work in C; a plain read of the tree says what the disk alone costs.
Figures are CPU seconds, since other processes share this machine; wall-clock seconds are printed beside them.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import print_machine

from perdure.sdk.files.uploads import _COMPRESSION, pack

RUNS = 3
FILES_PER_FOLDER = 1000
SMALL_BYTES = 1000
MAX_RATIO = 1.5
"""At most so many times the CPU time of `tar | gzip`."""


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--sparse-gb", type=int, default=10)
    parser.add_argument("--dense-mb", type=int, default=200)
    options = parser.parse_args()
    print_machine()
    trees = {
        f"{options.files:,} files of {SMALL_BYTES} B": lambda root: small_files(root, options.files),
        f"a sparse file of {options.sparse_gb} GB": lambda root: sparse_file(root, options.sparse_gb * 10**9),
        f"a file of {options.dense_mb} MB of noise": lambda root: dense_file(root, options.dense_mb * 10**6),
    }
    print("| tree | packing, CPU | tar and gzip, CPU | ratio | plain read, CPU | packing, wall | tar and gzip, wall |")
    print("|---|---|---|---|---|---|---|")
    missed = [name for name, make in trees.items() if measure(name, make) > MAX_RATIO]
    if missed:
        print(f"\nmissed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def measure(name: str, make: Callable[[Path], None]) -> float:
    """Print the figures of one tree. Returns the ratio. The runs alternate, so that all see the same machine."""
    with tempfile.TemporaryDirectory(prefix="packing-") as folder:
        root, target = Path(folder) / "tree", Path(folder) / "out.tar.gz"
        root.mkdir()
        make(root)
        quoted, out = shlex.quote(str(root)), shlex.quote(str(target))
        tar = ["sh", "-c", f"tar --sparse -cf - -C {quoted} . | gzip -{_COMPRESSION} > {out}"]
        ways: dict[str, Callable[[], object]] = {
            "pack": lambda: in_child(lambda: pack(root, target, is_workdir=True)),
            "tar": lambda: subprocess.run(tar, check=True),
            "read": lambda: in_child(lambda: read_all(root)),
        }
        costs: dict[str, list[Cost]] = {way: [] for way in ways}
        for _ in range(RUNS):
            for way, run in ways.items():
                costs[way].append(cost(run))
    best = {way: min(runs, key=lambda one: one.cpu_s) for way, runs in costs.items()}
    ratio = best["pack"].cpu_s / best["tar"].cpu_s
    cells = [f"{best['pack'].cpu_s:.2f} s", f"{best['tar'].cpu_s:.2f} s", f"{ratio:.2f}", f"{best['read'].cpu_s:.2f} s"]
    cells += [f"{best['pack'].wall_s:.2f} s", f"{best['tar'].wall_s:.2f} s"]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return ratio


def cost(run: Callable[[], object]) -> Cost:
    """Of all processes that `run` starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, time.perf_counter() - began)


def in_child(run: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("it failed")


def read_all(root: Path) -> None:
    for path in walk(root):
        if path.stat().st_blocks * 512 < path.stat().st_size // 2:
            continue  # holes are not on the disk
        with path.open("rb", buffering=0) as file:
            while file.read(256 * 1024):
                pass


def walk(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield Path(folder, name)


def small_files(root: Path, count: int) -> None:
    """Text that compresses about as well as source code."""
    words = Path(__file__).read_bytes()
    for number in range(count):
        folder = root / f"{number // FILES_PER_FOLDER:04}"
        if number % FILES_PER_FOLDER == 0:
            folder.mkdir()
        at = number * 7 % (len(words) - SMALL_BYTES)
        (folder / f"{number}.py").write_bytes(words[at : at + SMALL_BYTES])


def sparse_file(root: Path, size: int) -> None:
    with (root / "sparse").open("wb") as file:
        for part in range(10):
            file.seek(size // 10 * part)
            file.write(os.urandom(2**20))
        file.truncate(size)


def dense_file(root: Path, size: int) -> None:
    with (root / "dense").open("wb") as file:
        for _ in range(size // 10**6):
            file.write(os.urandom(10**6))


if __name__ == "__main__":
    sys.exit(main())
