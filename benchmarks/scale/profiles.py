"""Where the daemon's time goes, as flame graphs: `python -m benchmarks.scale.profiles [--jobs 10000]`.

It samples while jobs are launched, while they run, and after a kill, and writes
docs/figures/flame-{launch,steady,restart}.svg. Only moments in which a thread held the interpreter are sampled, since
they compete for one core. It needs py-spy (`pip install py-spy`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.machine import print_machine
from benchmarks.scale import scenarios
from benchmarks.scale.daemon import Daemon, running_daemon
from benchmarks.scale.flamegraph import read, render

PICTURES = Path(__file__).parents[2] / "docs" / "figures"
_RATE = 100  # samples a second
_STEADY_S = 30.0
# The frames that start a thread or the event loop are the same everywhere.
_HIDDEN = (
    r"\((<frozen (runpy|importlib\._bootstrap(_external)?)>|scale/simulated_cloud|controller/daemon|threading"
    r"|contextlib|uvloop/__init__|asyncio/runners|concurrent/futures/thread|anyio/_backends/_asyncio|starlette/concurrency)(\.py)?\)"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=10_000)
    words = parser.parse_args()
    if _py_spy() is None:
        print("this needs py-spy: pip install py-spy", file=sys.stderr)
        return 1
    print_machine()
    asyncio.run(record(words.jobs))
    return 0


async def record(jobs: int) -> None:
    async with running_daemon("") as daemon:
        with recorded("launch", f"{jobs:,} jobs from submission to RUNNING", daemon):
            await scenarios.submitted(daemon, jobs)
        with recorded("steady", f"{jobs:,} jobs run, a tenth of them prints a line per second", daemon):
            await scenarios.steady(daemon, seconds=_STEADY_S)
        with contextlib.ExitStack() as recording:

            def begun() -> None:
                what = f"restart of a killed daemon with {jobs:,} jobs, until every node has reconnected"
                recording.enter_context(recorded("restart", what, daemon))

            await scenarios.restarted(daemon, begun=begun)


@contextlib.contextmanager
def recorded(name: str, what: str, daemon: Daemon) -> Iterator[None]:
    """Sample the daemon until the end of the block, then draw the samples."""
    with tempfile.NamedTemporaryFile("r") as folded:
        command = [_py_spy(), "record", "--gil", "--function", "--threads", "--format", "raw"]
        spy = subprocess.Popen(
            [*command, "--rate", str(_RATE), "--output", folded.name, "--pid", str(daemon.process_id)],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            spy.send_signal(signal.SIGINT)
            spy.wait()
        root = read(map(_shortened, folded), hidden=_HIDDEN)
    if not root.count:
        raise SystemExit(f"py-spy recorded no sample of process {daemon.process_id}")
    day = datetime.now(UTC).date()
    title = f"{what}: {root.count:,} samples with the interpreter held, {day}"
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"flame-{name}.svg"
    path.write_text(render(root, title))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB", file=sys.stderr)


def _shortened(stack: str) -> str:
    """Merge the threads of a pool, and remove line numbers."""
    stack = re.sub(r"^thread \(0x[0-9A-F]+\)(: )?|^thread \(\d+\)(: )?", "", stack)
    stack = re.sub(r"^([^;]*?)[-_ ]*\d+(_\d+)?(?=;)", r"\1", stack)
    return re.sub(r":\d+\)", ")", stack)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


if __name__ == "__main__":
    sys.exit(main())
