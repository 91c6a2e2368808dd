"""A daemon with the simulated cloud, as a process that can be watched, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
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

LAUNCH_S = 0.05
_START_S = 120.0
_CONFIG = "local: false\ngcp: {}\nlog_level: warning\nlimits: {silent_s: 60}\n"


@contextlib.asynccontextmanager
async def a_daemon(database: str) -> AsyncIterator[Daemon]:
    """A daemon of its own, and nothing left of it."""
    home = Path(tempfile.mkdtemp(prefix="holdfast-scale-"))
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
        asking = [sys.executable, "-m", "benchmarks.scale.user", str(self.home), str(_START_S)]
        user = await asyncio.create_subprocess_exec(*asking, stdout=asyncio.subprocess.PIPE)
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
        return await asyncio.to_thread(self.caller().ask, method, path, body)

    def caller(self) -> Caller:
        return Caller(self.address, (self.tokens / "token").read_text().strip())


class Caller:
    """A user with one connection, that stays."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=600)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {data[:500].decode()}")
        return json.loads(data)
