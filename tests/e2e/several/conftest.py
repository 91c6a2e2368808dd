"""Several controllers on one PostgreSQL, behind one address, over one local cloud. Everything real but the network."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import warm
from lines import Line
from perdure.sdk.client import Client, is_healthy
from perdure.sdk.endpoint import Endpoint

PATIENCE_S = 150.0
LEASE_S = 3.0


class Relay:
    """A TCP balancer: each new connection goes to the next backend that answers. `backends`: ports of this computer."""

    def __init__(self) -> None:
        self.backends: dict[str, int] = {}
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = starting.result(30)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        def stop() -> None:
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.2, self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = list(self.backends.values())
        first = next(self._turn)
        try:
            for at in range(len(ports)):
                port = ports[(first + at) % len(ports)]
                with contextlib.suppress(OSError, TimeoutError):
                    if await asyncio.wait_for(self._answers(port), 3.0):
                        theirs, back = await asyncio.open_connection("127.0.0.1", port)
                        await asyncio.gather(_pump(reader, back), _pump(theirs, writer))
                        return
        finally:
            writer.close()

    async def _answers(self, port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            return b" 200 " in await reader.readline()
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


@dataclass
class Several:
    """`daemons`: process by name. `client` speaks through the relay, `client_of` with one daemon. `lines`: to the
    database, of those daemons that have one of their own."""

    folder: Path
    postgres: Any
    url: str
    lease_s: float = LEASE_S
    relay: Relay = field(default_factory=Relay)
    daemons: dict[str, warm.Daemon] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)

    @property
    def token(self) -> str:
        return (self.folder / "keyring" / "token").read_text().strip()

    @property
    def client(self) -> Client:
        return Client(Endpoint(self.relay.url, self.token))

    def client_of(self, name: str) -> Client:
        return Client(Endpoint(f"http://127.0.0.1:{self.relay.backends[name]}", self.token))

    def home(self, name: str) -> Path:
        return self.folder / name

    def url_for(self, name: str) -> str:
        """The database as this daemon is told of it."""
        line = self.lines.get(name)
        return self.url.replace(f":{self.postgres.port}/", f":{line.port}/") if line else self.url

    def hears(self, job_id: int) -> str:
        """The name of the daemon that holds the connection of the job's node; empty if none does."""
        query = "SELECT c.endpoint FROM connection n JOIN controller c ON c.id = n.controller"
        return self._named(f"{query} WHERE n.job_id = {job_id}")

    def begin(self, *names: str) -> None:
        """Start these daemons at once, and wait until all answer."""
        for name in names:
            home = self.home(name)
            home.mkdir(exist_ok=True)
            (home / "controller.json").unlink(missing_ok=True)
            (home / "config.yaml").write_text(
                f"listen: {{advertise: '{self.relay.url}'}}\n"
                f"database: {{url: '{self.url_for(name)}', lease_s: {self.lease_s}}}\n"
                f"keyring: {self.folder}/keyring\n"
                f"local: {{directory: {self.folder}}}\n"
            )
            self.daemons[name] = warm.start(home, environ=os.environ, stderr=home / "stderr")
        for name in names:
            self.until(lambda name=name: self._found(name), f"daemon {name} answers")

    def _found(self, name: str) -> bool:
        home = self.home(name)
        if self.daemons[name].poll() is not None:
            pytest.fail(f"{name} ended: {(home / 'stderr').read_text()}")
        with contextlib.suppress(OSError):
            found = re.search(r'"endpoint": "(http://[^:]+:(\d+))"', (home / "controller.json").read_text())
            if found and is_healthy(Endpoint(found[1], self.token)):
                self.relay.backends[name] = int(found[2])
                return True
        return False

    def kill(self, name: str) -> None:
        self.daemons[name].kill()
        self.daemons.pop(name).wait()
        self.relay.backends.pop(name, None)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.daemons[name].send_signal(number)

    def submit(self, run: str, *, client: Client | None = None, **config: Any) -> int:
        """Hand in a job of one task; its id."""
        task = {"run": run, "resources": {"infra": "local", "use_spot": True, "cpus": "1+"}, **config}
        return int((client or self.client).submit(None, [task], user="somebody", key=os.urandom(8).hex())["job_id"])

    def job(self, job_id: int) -> dict[str, Any]:
        return dict(self.client.job(job_id))

    def owner(self, job_id: int) -> str:
        """The name of the daemon whose job it is; empty if it is nobody's who lives."""
        return self._named(f"SELECT c.endpoint FROM job j JOIN controller c ON c.id = j.owner WHERE j.id = {job_id}")

    def _named(self, query: str) -> str:
        endpoint = self.postgres.sql(query, self.url.rpartition("/")[2]).strip()
        return next((n for n, port in self.relay.backends.items() if endpoint.endswith(f":{port}")), "")

    def log(self, job_id: int, client: Client | None = None) -> str:
        with (client or self.client).logs(job_id, follow=False) as stream:
            return b"".join(stream).decode()

    def until(self, condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        """The first true answer of `condition`; what fails while a daemon is away is asked again."""
        give_up_at = time.monotonic() + patience_s
        while True:
            assert time.monotonic() < give_up_at, f"in vain: {what}"
            with contextlib.suppress(Exception):
                if answer := condition():
                    return answer
            threading.Event().wait(0.1)

    def until_status(self, job_id: int, *statuses: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["status"] in statuses else None

        return dict(self.until(reached, f"job {job_id} is {' or '.join(statuses)}", patience_s))

    def machines(self) -> list[str]:
        """The ids of all machines that there ever were."""
        return sorted(p.name for p in self.folder.glob("local/instances/local-*"))

    def living(self) -> list[Path]:
        return list(self.folder.glob("local/instances/*/machine"))

    def end(self) -> None:
        """Every job is cancelled, every machine gone, every daemon stopped."""
        for line in self.lines.values():
            line.join()
        for name in self.daemons:
            self.signal(name, signal.SIGCONT)
        try:
            with contextlib.suppress(Exception):
                self.client.cancel(everything=True, graceful=False)
            self.until(lambda: not self.living(), "the end of every machine")
        finally:
            for process in self.daemons.values():
                process.terminate()
            for process in self.daemons.values():
                process.wait(60)
            self.relay.close()
            for line in self.lines.values():
                line.close()


@pytest.fixture
def several(postgres: Any, tmp_path: Path) -> Iterator[Callable[..., Several]]:
    """Makes one, with daemons of these names running; some `with_lines` of their own to the database."""
    made: list[Several] = []

    def make(*names: str, with_lines: Sequence[str] = (), **more: Any) -> Several:
        one = Several(tmp_path, postgres, postgres.new_database(), **more)
        one.lines |= {name: Line(postgres.port) for name in with_lines}
        made.append(one)
        one.begin(*names)
        return one

    yield make
    for one in made:
        one.end()
