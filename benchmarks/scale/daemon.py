"""A daemon with the simulated cloud, as a process that can be watched, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
_CONFIG = "local: false\ngcp: {}\nlog_level: warning\nlimits: {silent_s: 60}\n"


@contextlib.asynccontextmanager
async def a_daemon(database: str) -> AsyncIterator[Daemon]:
    """A daemon of its own, and nothing left of it."""
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
    """`database`: the URL of an empty PostgreSQL database; "": SQLite. `keyring`: the folder of one that several share,
    whose nodes and users call any of them."""

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
        """Returns the seconds until it answered. `begun` is called before, when the process is there."""
        (self.home / "controller.json").unlink(missing_ok=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.scale.simulated", self.home, self.world.path, str(LAUNCH_S)]
        self._process = subprocess.Popen(command)
        begun()
        found = await self._first_answer()
        self.pid, self.address = found["pid"], ("127.0.0.1", found["port"])
        self.world.addresses[self.home] = self.address
        return float(found["at"]) - began

    async def _first_answer(self) -> dict[str, Any]:
        user = await _a_user("answer", str(self.home), str(_START_S))
        told, _ = await user.communicate()
        if user.returncode != 0:
            raise SystemExit(f"the daemon did not start; see {self.home / 'controller.log'}")
        found: dict[str, Any] = json.loads(told)
        return found

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
        """Known as soon as the daemon is started, before it answers."""
        return self._process.pid if self._process is not None else 0

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    @property
    def memory_mib(self) -> float:
        return memory_mib(self.pid, "VmRSS")

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """One call of the API; what it answered, decoded."""
        return await asyncio.to_thread(Caller(self.address, self.tokens / "token").ask, method, path, body)

    async def submit(self, body: object, *, count: int, users: int) -> tuple[float, list[float]]:
        """So many jobs, each by a call of its own: the seconds that all took, and each call."""
        submitting = await _a_user("submit", *self._where(), str(count), str(users))
        told, _ = await submitting.communicate(json.dumps(body).encode())
        if submitting.returncode != 0:
            raise SystemExit(f"a job was refused; see {self.home / 'controller.log'}")
        found = json.loads(told)
        return found["s"], found["calls_s"]

    @contextlib.asynccontextmanager
    async def looked_at(self, calls_s: list[float], *, each_s: float = 0.1) -> AsyncIterator[None]:
        """Meanwhile a user asks for a page of the queue, again and again; `calls_s` gets how long each took."""
        looking = await _a_user("look", *self._where(), str(each_s))
        try:
            yield
        finally:
            told, _ = await looking.communicate(b"")
        if looking.returncode != 0:
            raise SystemExit(f"the queue was refused; see {self.home / 'controller.log'}")
        calls_s += json.loads(told)["calls_s"]

    def _where(self) -> tuple[str, str, str]:
        return self.address[0], str(self.address[1]), str(self.tokens / "token")


async def _a_user(*words: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.scale.user", *words), stdin=pipe, stdout=pipe
    )
