"""Several controllers on one PostgreSQL, behind one address, over one local cloud. Only the network is simulated."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e.peers.balancer import Relay
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.health import is_healthy
from support.fakes.tcp_relay import Line
from support.helpers import daemon_forkserver
from support.helpers.postgres_server import Postgres
from support.helpers.timing import Deadline

TIMEOUT_S = 150.0
LEASE_S = 3.0
Value = TypeVar("Value")


@dataclass
class Several:
    """`daemons`: processes. `client` calls through the relay, `client_of` calls one daemon. `lines`: relays to the
    database, of the daemons that have one."""

    folder: Path
    postgres: Postgres
    url: str
    lease_duration_s: float = LEASE_S
    relay: Relay = field(default_factory=Relay)
    daemons: dict[str, daemon_forkserver.Daemon] = field(default_factory=dict)
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
        """The database URL of this daemon."""
        line = self.lines.get(name)
        return self.url.replace(f":{self.postgres.port}/", f":{line.port}/") if line else self.url

    def node_connection(self, job_id: int) -> str:
        """The name of the daemon that the job's node is connected to; empty if there is none."""
        query = "SELECT c.endpoint FROM agent_connection n JOIN controller c ON c.id = n.controller"
        return self._named(f"{query} WHERE n.job_id = {job_id}")

    def begin(self, *names: str) -> None:
        """Start these daemons at once, and wait until all of them respond."""
        for name in names:
            home = self.home(name)
            home.mkdir(exist_ok=True)
            (home / "controller.json").unlink(missing_ok=True)
            (home / "config.yaml").write_text(
                f"listen: {{advertise: '{self.relay.url}'}}\n"
                f"database: {{url: '{self.url_for(name)}', lease_duration_s: {self.lease_duration_s}}}\n"
                f"keyring: {self.folder}/keyring\n"
                f"local: {{directory: {self.folder}}}\n"
            )
            self.daemons[name] = daemon_forkserver.start(home, environ=os.environ, stderr=home / "stderr")
        for name in names:
            self.until(lambda name=name: self._found(name), f"daemon {name} answers")  # type: ignore[misc]

    def _found(self, name: str) -> bool:
        home = self.home(name)
        if self.daemons[name].poll() is not None:
            pytest.fail(f"{name} ended: {(home / 'stderr').read_text()}")
        with contextlib.suppress(OSError):
            match = re.search(r'"endpoint": "(http://[^:]+:(\d+))"', (home / "controller.json").read_text())
            if match and is_healthy(Endpoint(match[1], self.token)):
                self.relay.backends[name] = int(match[2])
                return True
        return False

    def kill(self, name: str) -> None:
        self.daemons[name].kill()
        self.daemons.pop(name).wait()
        self.relay.backends.pop(name, None)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.daemons[name].send_signal(number)

    def submit(self, run: str, *, client: Client | None = None, **config: Any) -> int:
        """Submit a job of one task; return its ID."""
        task = {"run": run, "resources": {"infra": "local", "use_spot": True, "cpus": "1+"}, **config}
        return int((client or self.client).submit(None, [task], user="somebody", key=os.urandom(8).hex())["job_id"])

    def job(self, job_id: int) -> dict[str, Any]:
        return dict(self.client.job(job_id))

    def owner(self, job_id: int) -> str:
        """The name of the live daemon that owns the job; empty if there is none."""
        return self._named(f"SELECT c.endpoint FROM job j JOIN controller c ON c.id = j.owner WHERE j.id = {job_id}")

    def _named(self, query: str) -> str:
        endpoint = self.postgres.sql(query, self.url.rpartition("/")[2]).strip()
        return next((n for n, port in self.relay.backends.items() if endpoint.endswith(f":{port}")), "")

    def log(self, job_id: int, client: Client | None = None) -> str:
        with (client or self.client).logs(job_id, follow=False) as stream:
            return b"".join(stream).decode()

    def until(self, condition: Callable[[], Value | None], what: str, timeout_s: float = TIMEOUT_S) -> Value:
        """Wait for the first true value of `condition`. Its exceptions, such as of an absent daemon, are ignored."""
        deadline = Deadline(timeout_s)
        while True:
            assert not deadline.has_passed, f"not within {deadline}: {what}"
            with contextlib.suppress(Exception):
                if answer := condition():
                    return answer
            threading.Event().wait(0.1)

    def until_status(self, job_id: int, *statuses: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["status"] in statuses else None

        return self.until(reached, f"job {job_id} is {' or '.join(statuses)}", timeout_s)

    def machines(self) -> list[str]:
        """The IDs of all machines ever launched."""
        return sorted(p.name for p in self.folder.glob("local/instances/local-*"))

    def living(self) -> list[Path]:
        return list(self.folder.glob("local/instances/*/machine"))

    def end(self) -> None:
        """Cancel every job, wait for the end of every machine, and stop every daemon."""
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


StartCluster = Callable[..., Several]
