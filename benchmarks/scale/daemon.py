"""A daemon with the simulated cloud, as a process that a benchmark can observe, kill and restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchmarks.scale.nodes import World
from benchmarks.scale.queue import cpu_s, memory_mib
from benchmarks.scale.user import Caller

LAUNCH_S = 0.05
_START_S = 120.0
_CONFIG = "local: false\ngcp: {}\nlog_level: warning\ntimeouts: {node_timeout_s: 60}\n"


@contextlib.asynccontextmanager
async def running_daemon(database: str) -> AsyncIterator[Daemon]:
    """Start a daemon with a new home; afterwards stop it and remove the home."""
    home = Path(tempfile.mkdtemp(prefix="perdure-scale-"))
    world = World(home / "cloud.sock")
    daemon = Daemon(home, world, database)
    await world.begin()
    try:
        await daemon.start()
        yield daemon
    finally:
        await world.end()
        daemon.stop()
        shutil.rmtree(home, ignore_errors=True)


class Daemon:
    """One daemon process.

    `database`: the URL of an empty PostgreSQL database; "" for SQLite. `keyring`: the folder of a keyring that several
    daemons share, so that their nodes and users can connect to any of them.
    """

    def __init__(self, home: Path, world: World, database: str = "", keyring: Path | None = None) -> None:
        self.home = home
        self.world = world
        self.tokens = keyring or home
        config = _CONFIG + (f"database: {{url: '{database}'}}\n" if database else "")
        if keyring is not None:
            config += f"keyring: {keyring}\nlisten: {{port: 0, advertise: 'http://127.0.0.1:1'}}\n"
        (home / "config.yaml").write_text(config)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ("127.0.0.1", 0)
        self.pid = 0

    async def start(self, begun: Callable[[], None] = lambda: None) -> float:
        """Returns the seconds until it answered. Calls `begun` as soon as the process exists."""
        (self.home / "controller.json").unlink(missing_ok=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.scale.simulated_cloud", self.home, self.world.path, str(LAUNCH_S)]
        self._process = subprocess.Popen(command, env=self._environment())
        begun()
        ready = await self._wait_until_ready()
        self.pid, self.address = ready["pid"], ("127.0.0.1", ready["port"])
        self.world.addresses[self.home] = self.address
        return float(ready["at"]) - began

    def _environment(self) -> dict[str, str]:
        """An environment in which Python keeps compiled modules, so that a restart finds them as it does where Perdure
        is installed."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPYCACHEPREFIX": str(self.home / "compiled")}

    async def _wait_until_ready(self) -> dict[str, Any]:
        user = await _start_user("wait", str(self.home), str(_START_S))
        output, _ = await user.communicate()
        if user.returncode != 0:
            raise SystemExit(f"the daemon did not start; see {self.home / 'controller.log'}")
        ready: dict[str, Any] = json.loads(output)
        return ready

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()

    @property
    def process_id(self) -> int:
        """Available as soon as the process has started, before it answers."""
        return self._process.pid if self._process is not None else 0

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    @property
    def memory_mib(self) -> float:
        return memory_mib(self.pid, "VmRSS")

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """Call the API once; returns the decoded response."""
        return await asyncio.to_thread(Caller(self.address, self.tokens / "token").request, method, path, body)

    async def submit(self, body: object, *, count: int, users: int) -> tuple[float, list[float]]:
        """Submit `count` jobs with one call each. Returns the seconds for all of them, and those of each call."""
        submitting = await _start_user("submit", *self._where(), str(count), str(users))
        output, _ = await submitting.communicate(json.dumps(body).encode())
        if submitting.returncode != 0:
            raise SystemExit(f"a submission was rejected; see {self.home / 'controller.log'}")
        result = json.loads(output)
        return result["s"], result["calls_s"]

    @contextlib.asynccontextmanager
    async def queue_polled(self, calls_s: list[float], *, each_s: float = 0.1) -> AsyncIterator[None]:
        """Poll a page of the queue during the block, and append the seconds of each call to `calls_s`."""
        poller = await _start_user("poll", *self._where(), str(each_s))
        try:
            yield
        finally:
            output, _ = await poller.communicate(b"")
        if poller.returncode != 0:
            raise SystemExit(f"a request for the queue was rejected; see {self.home / 'controller.log'}")
        calls_s += json.loads(output)["calls_s"]

    def _where(self) -> tuple[str, str, str]:
        return self.address[0], str(self.address[1]), str(self.tokens / "token")


async def _start_user(*words: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.scale.user", *words), stdin=pipe, stdout=pipe
    )
