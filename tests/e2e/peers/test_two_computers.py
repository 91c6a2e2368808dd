"""A service of two controllers with a network of their own each, and a load balancer between them and the callers.

Only the database's socket and the files of the local cloud are shared: a network namespace is a computer here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perdure.controller.clouds.local.machine import syscalls
from perdure.sdk import serve
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.health import is_healthy
from support.helpers.postgres_server import Postgres
from support.helpers.services import HAS_HAPROXY, Caller, service_task
from support.helpers.timing import scaled, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh"),
]

NAME, NUM_REPLICAS, PORT, SERVICE_PORT = "model", 2, 8700, 30001
BALANCER, ADDRESSES = "10.79.0.1", {"a": "10.79.0.2", "b": "10.79.0.3"}
CLONE_NEWNET = 0x40000000
CONFIG = """
listen: {{host: {host}, port: {port}, advertise: 'http://{balancer}:{port}', trust_proxy_tls: true}}
database: {{url: '{url}', lease_duration_s: 3}}
keyring: {folder}/keyring
local: {{directory: {folder}}}
"""


class Balancer:
    """Passes a port of its own address on to the first of `computers` that listens there."""

    def __init__(self, port: int, *computers: str) -> None:
        self.computers = list(computers)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, BALANCER, port), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            for name in self.computers:
                with contextlib.suppress(OSError, TimeoutError):
                    opening = asyncio.open_connection(ADDRESSES[name], self._port)
                    theirs, back = await asyncio.wait_for(opening, scaled(3))
                    with contextlib.closing(back):
                        await asyncio.gather(_pump(reader, back), _pump(theirs, writer))
                        return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@dataclass
class Computers:
    """`daemons`: the controllers, by the names of their computers, each of which `_sleepers` keeps."""

    folder: Path
    url: str
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _sleepers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str) -> Client:
        """Plug a computer in, and start a controller there."""
        sleeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._sleepers.append(sleeper)
        own = os.readlink("/proc/thread-self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{sleeper.pid}/ns/net") != own, "a network namespace", 30)
        inside = ["nsenter", f"--target={sleeper.pid}", "--net"]
        _run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(sleeper.pid))
        _run("ip", "link", "set", f"to-{name}", "master", "bridge0", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        home = self.folder / name
        home.mkdir()
        more = {"host": ADDRESSES[name], "port": PORT, "balancer": BALANCER, "url": self.url, "folder": self.folder}
        (home / "config.yaml").write_text(CONFIG.format(**more))
        command = [*inside, sys.executable, "-m", "perdure.controller", "serve", "--home", str(home)]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PERDURE_")}
        with open(home / "stderr", "wb") as output:
            self.daemons[name] = subprocess.Popen(
                command, env=environ, stdout=output, stderr=output, start_new_session=True
            )
        wait_until(lambda: self._answers(name), f"the controller on {name}", 60)
        return self.client(name)

    def client(self, name: str) -> Client:
        return Client(self._endpoint(name))

    def living(self) -> list[Path]:
        return list(self.folder.glob("local/instances/*/machine"))

    def failures(self) -> list[str]:
        """The lines of the controllers' logs about exceptions."""
        logs = (self.folder / name / "controller.log" for name in self.daemons)
        return [line[:2000] for log in logs for line in log.read_text().splitlines() if '"exception"' in line]

    def stop(self) -> None:
        for daemon in self.daemons.values():
            daemon.terminate()
            daemon.wait(60)
        for sleeper in self._sleepers:
            sleeper.kill()
            sleeper.wait()

    def _answers(self, name: str) -> bool:
        assert self.daemons[name].poll() is None, (self.folder / name / "stderr").read_text()
        with contextlib.suppress(OSError):
            return is_healthy(self._endpoint(name))
        return False

    def _endpoint(self, name: str) -> Endpoint:
        token = (self.folder / "keyring" / "token").read_text().strip()
        return Endpoint(f"http://{ADDRESSES[name]}:{PORT}", token)


@pytest.fixture
def computers(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Computers]:
    """Runs this thread in a network of its own, with a bridge that is the balancer's computer."""
    monkeypatch.setenv("PERDURE_PLAIN_HTTP", "1")  # nobody else is in this network
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"networks need root and {', '.join(missing) or 'the tools that are here'}")
    database = postgres.new_database().rpartition("/")[2]
    one = Computers(tmp_path, f"postgresql://perdure@/{database}?host={postgres.folder}&port={postgres.port}")
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        syscalls.unshare(CLONE_NEWNET)
    except OSError as error:
        pytest.skip(f"a network namespace cannot be created here: {error}")
    try:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "bridge0", "type", "bridge")
        _run("ip", "address", "add", f"{BALANCER}/24", "dev", "bridge0")
        _run("ip", "link", "set", "bridge0", "up")
        yield one
    finally:
        one.stop()
        ctypes.CDLL(None).setns(before, CLONE_NEWNET)
        os.close(before)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def until_answering(caller: Caller, replicas: set[str]) -> None:
    """Wait until each of these has answered, and nothing else has."""
    seen: set[str] = set()

    def all_have() -> bool:
        with contextlib.suppress(OSError):  # the balancer closes a connection that nobody takes
            answer = caller.call()
            assert answer.status == 200
            seen.add(answer.json()["replica"])
        return seen == replicas

    wait_until(all_have, f"answers of the replicas {replicas}", 60)


def ready_jobs(client: Client) -> dict[str, int | None]:
    replicas = serve.get(NAME, client=client)["replicas"]
    return {str(one["number"]): one["job_id"] for one in replicas if one["status"] == "READY"}


def test_service__moves_to_the_controller_on_another_computer(computers: Computers) -> None:
    a, b = computers.start("a"), computers.start("b")
    api, endpoint = Balancer(PORT, "b"), Balancer(SERVICE_PORT, "a", "b")  # so every node connects to b
    try:
        task = service_task({"replicas": NUM_REPLICAS}, resources={"infra": "local"})
        started = serve.up(task, NAME, client=a)
        assert started["endpoint"] == f"http://{BALANCER}:{SERVICE_PORT}"
        caller = Caller(started["endpoint"], started["token"])
        wait_until(lambda: serve.get(NAME, client=b)["ready_replicas"] == NUM_REPLICAS, "all replicas", 120)
        jobs = ready_jobs(b)
        until_answering(caller, set(jobs))
        assert [event["index"] for event in caller.stream(5)] == [0, 1, 2, 3, 4]

        computers.daemons["a"].kill()
        computers.daemons["a"].wait()
        until_answering(caller, set(jobs))
        after = serve.get(NAME, client=b)
        assert ready_jobs(b) == jobs, "no replica was replaced"
        assert (after["endpoint"], after["status"]) == (started["endpoint"], "READY")
        assert computers.failures() == []
        serve.down(NAME, client=b)
        wait_until(lambda: not computers.living(), "the end of every machine", 60)
    finally:
        api.close()
        endpoint.close()
