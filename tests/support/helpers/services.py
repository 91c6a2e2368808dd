"""Services of a real controller, and a small program that answers like a model server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.sdk import Task, serve
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.discovery import running
from perdure.sdk.serve import types
from support.helpers.controllers import Controller, running_controller
from support.helpers.timing import scaled

PROGRAM = Path(__file__).parent / "tiny_model_server.py"
HAS_HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
RUN = 'exec python3 "$SERVER" 8080'


def service_task(section: dict[str, Any] | None = None, run: str = RUN, **more: Any) -> Task:
    """A service of the small program, which listens at its machine's own address: local machines share a network."""
    config = {
        "service": {"readiness_probe": {"path": "/v1/models", "initial_delay_seconds": 20}, **(section or {})},
        "resources": {"ports": 8080, "cpus": 1, **more.pop("resources", {})},
        "envs": {"SERVER": str(PROGRAM), **more.pop("envs", {})},
        "run": run,
        **more,
    }
    return Task.from_yaml_config(config)


@dataclass(frozen=True)
class ServiceHost:
    """Calls of the SDK on one controller."""

    controller: Controller

    @property
    def client(self) -> Client:
        """A client of the daemon, which is started if it has died."""
        endpoint = running(self.controller.home)
        if endpoint is None:
            self.controller.perdure("controller", "start")
            return self.controller.client
        return Client(endpoint)

    def up(self, name: str, task: Task, *, ready: int | None = 1, **more: Any) -> Caller:
        """Start a service, and wait until so many replicas are ready."""
        started = serve.up(task, name, client=self.client, **more)
        if ready is not None:
            self.until_ready(name, ready)
        return Caller(started["endpoint"], started["token"])

    def until_ready(self, name: str, count: int) -> types.Service:
        return self.until(name, lambda one: one["ready_replicas"] == count, f"{count} ready replicas")

    def until(self, name: str, condition: Any, what: str) -> types.Service:
        def find() -> types.Service | None:
            service = self.get(name)
            return service if condition(service) else None

        return self.controller.until(find, f"{name} to have {what}")

    def get(self, name: str) -> types.Service:
        return serve.get(name, client=self.client)

    def ready(self, name: str) -> list[types.ServiceReplica]:
        return [one for one in self.get(name)["replicas"] if one["status"] == "READY"]

    def proxy_pid(self, name: str) -> int:
        """The process of a service's proxy."""
        folder = (self.controller.home / "services" / "sockets").read_text().strip()
        marker = f"{folder}/{self.get(name)['service_id']}/haproxy.cfg"
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and marker.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                    return int(process.name)
        raise AssertionError(f"no proxy of {name} runs")

    def signal_machine(self, number: int, signal_: signal.Signals) -> None:
        """Send a signal to every process of a replica's local machine, such as SIGSTOP: then it is only silent."""
        for machine in self.machines():
            if any(_environ_has(pid, f"SKYPILOT_SERVE_REPLICA_ID={number}") for pid in machine):
                for pid in machine:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal_)
                return
        raise AssertionError(f"no machine of replica {number} runs")

    def machines(self) -> Iterator[list[int]]:
        """The processes of each local machine."""
        children: dict[int, list[int]] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(process.name))
        for state in self.controller.home.glob("local/instances/*/state.json"):
            machine = [json.loads(state.read_text()).get("pid", 0)]
            for pid in machine:
                machine += children.get(pid, [])
            yield machine

    def kill_daemon(self) -> None:
        os.kill(json.loads((self.controller.home / "controller.json").read_text())["pid"], signal.SIGKILL)

    def controller_processes(self) -> list[str]:
        """What runs of the controller and of its machines, by program."""
        pid = json.loads((self.controller.home / "controller.json").read_text())["pid"]
        known = {pid, *_descendants(pid), *(one for machine in self.machines() for one in machine)}
        return sorted(program for one in known if (program := _program_of(one)))

    def no_machines(self) -> bool:
        return not list(self.controller.home.glob("local/instances/*/machine"))


def _descendants(pid: int) -> set[int]:
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            children.update(map(int, task.read_text().split()))
    return children.union(*map(_descendants, children))


def _program_of(pid: int) -> str:
    """ "" if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return ""
    return "perdure.controller" if "perdure.controller" in words else words[0]


def _environ_has(pid: int, entry: str) -> bool:
    try:
        return entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@dataclass(frozen=True)
class Caller:
    """A client of a service."""

    endpoint: str
    token: str

    def open(self, timeout_s: float = 60) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=scaled(timeout_s))

    def call(
        self, path: str = "/", method: str = "GET", *, body: Any = None, token: str | None = None, timeout_s: float = 60
    ) -> Answer:
        """One request on a connection of its own. Raises what `http.client` raises."""
        with contextlib.closing(self.open(timeout_s)) as link:
            key = self.token if token is None else token
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            link.request(method, path, None if body is None else json.dumps(body), headers)
            answer = link.getresponse()
            return Answer(answer.status, answer.read(), dict(answer.headers))

    def calls(self, count: int) -> int:
        """How many POST and similar requests `count` replicas have received, once each of them has answered."""
        by_replica: dict[str, int] = {}
        for _ in range(20 * count):
            if len(by_replica) == count:
                return sum(by_replica.values())
            answer = self.call("/calls").json()
            by_replica[answer["replica"]] = answer["calls"]
        raise AssertionError(f"only {sorted(by_replica)} answered")

    def stream(self, count: int, **more: Any) -> Iterator[dict[str, Any]]:
        """The events of a streamed completion. Raises IncompleteRead if it is cut."""
        with contextlib.closing(self.open()) as link:
            body = json.dumps({"stream": True, "max_tokens": count, **more})
            link.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {self.token}"})
            answer = link.getresponse()
            assert answer.status == 200, (answer.status, answer.read())
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.contextmanager
def running_services(home: Path, config: str = "", **more: Any) -> Iterator[ServiceHost]:
    """A controller on `home`; in the end nothing of it is left."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(config)
    with running_controller(home, **more) as controller:
        try:
            yield ServiceHost(controller)
        finally:
            controller.perdure("serve", "down", "--all", "--yes", check=False)
