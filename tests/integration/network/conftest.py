"""A real daemon and real agents with a real network between them, whose cables can be broken one way or both.

The test's own thread moves to a network namespace of its own, and so does everything that it starts. A direction is
broken by a wrong address in the sender's neighbour table: packets leave, and nobody takes them. No reset, no error:
what a firewall that has forgotten a connection does, and a switch without power.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from perdure.controller.clouds.local import syscalls
from perdure.sdk.client import Client
from perdure.sdk.endpoint import running

HERE = Path(__file__).parent
PATIENCE_S = 60.0
CONTROLLER, CONTROLLER_MAC = "10.77.0.1", "02:00:00:00:00:01"
NOBODYS_MAC = "02:00:00:00:00:99"
CLONE_NEWNET = 0x40000000
# Agents call again every 5 s at the latest: who may be silent for less is written off for nothing.
CONFIG = """
listen: {host: 10.77.0.1, port: 8700, plain_http_behind_proxy: true}
limits: {silent_s: 8, drain_s: 3, recheck_s: 1}
nodes: {beat_s: 0.5}
"""


def ip(*words: str, of: int | None = None) -> None:
    """Run `ip`, in the network of the process `of` if given."""
    inside = ["nsenter", "--target", str(of), "--net"] if of else []
    subprocess.run([*inside, "ip", *words], check=True, capture_output=True, text=True)


def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """The first true answer of `condition`."""
    give_up_at = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"in vain: {what}"
        Event().wait(0.02)
    return answer


class Machine:
    """A node from outside: its host's folder, its cable, its processes."""

    def __init__(self, home: Path, number: str, name: str) -> None:
        self.name = name
        self._number = number
        self._folder = home / "local" / "instances" / name

    @property
    def state(self) -> dict[str, Any]:
        return dict(json.loads((self._folder / "state.json").read_text()))

    @property
    def pid(self) -> int:
        """Of its first process."""
        return int(self.state["pid"])

    @property
    def disk(self) -> Path:
        """The machine's own root, from outside."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def is_on(self) -> bool:
        return bool(self.state["state"] != "ended")

    @property
    def agent_log(self) -> str:
        return (self._folder / "agent.log").read_text(errors="replace")

    def drop_to_controller(self) -> None:
        """What this node sends is lost."""
        self._neighbour(CONTROLLER, NOBODYS_MAC, "eth0", of=self.pid)

    def drop_from_controller(self) -> None:
        """What the controller sends to this node is lost."""
        self._neighbour(f"10.77.0.{self._number}", NOBODYS_MAC, "bridge0")

    def cut_off(self) -> None:
        self.drop_to_controller()
        self.drop_from_controller()

    def join(self) -> None:
        """All cables are as new."""
        if self.is_on:
            self._neighbour(CONTROLLER, CONTROLLER_MAC, "eth0", of=self.pid)
        self._neighbour(f"10.77.0.{self._number}", f"02:00:00:00:00:{self._number}", "bridge0")

    def signal(self, name: str = "go") -> None:
        """Make the file /tmp/NAME, for which the workload waits."""
        (self.disk / "tmp" / name).touch()

    def workload(self) -> list[psutil.Process]:
        """What runs `run`, whatever it did to get away."""
        return [p for p in self.processes() if "PERDURE_RUN_DIR" in _environ(p)]

    def agent(self) -> psutil.Process:
        return next(p for p in self.processes() if p.ppid() == self.pid and "PERDURE_TOKEN" in _environ(p))

    def processes(self) -> list[psutil.Process]:
        try:
            inside = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return []
        return [p for p in psutil.process_iter() if _namespace(p.pid) == inside]

    @staticmethod
    def _neighbour(address: str, mac: str, device: str, of: int | None = None) -> None:
        ip("neighbour", "replace", address, "lladdr", mac, "dev", device, "nud", "permanent", of=of)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


class Rig:
    """A daemon that can be frozen, killed and started again, and its machines."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "networks"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._folder.mkdir(parents=True)
        (home / "forgotten").mkdir()

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        with open(self.home / "daemon.out", "ab") as out:
            command = [sys.executable, str(HERE / "rig.py"), str(self.home), str(self._folder)]
            self._daemon = subprocess.Popen(command, env=environ, stdout=out, stderr=out, start_new_session=True)
        until(self._answers, "the daemon's start")

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, (self.home / "daemon.out").read_text()
        return (endpoint := running(self.home)) is not None and endpoint.pid == self._daemon.pid

    @property
    def client(self) -> Client:
        endpoint = running(self.home)
        assert endpoint is not None, "the controller does not run"
        return Client(endpoint)

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGCONT)
        self._daemon.send_signal(number)
        self._daemon.wait(PATIENCE_S)

    def launch(self, run: str, **task: Any) -> int:
        asked = {"name": "net", "run": run, "resources": {"use_spot": True}, **task}
        return int(self.client.submit("net", [asked], user="", key=f"net-{time.monotonic_ns()}")["job_id"])

    def job(self, job: int) -> dict[str, Any]:
        return dict(self.client.job(job))

    def until_status(self, job: int, *statuses: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            found = self.job(job)
            return found if found["status"] in statuses else None

        return dict(until(seen, f"job {job} to be {statuses}", timeout_s))

    def log(self, job: int, generation: int = 1) -> bytes:
        """Every byte that the controller keeps of a node's output."""
        path = self.home / "logs" / str(job) / "0" / str(generation) / "0.log"
        return path.read_bytes() if path.exists() else b""

    def machine(self, job: int, generation: int = 1, rank: int = 0) -> Machine:
        """The machine of a node, once it has one."""

        def found() -> str | None:
            attempts = [a for a in self.job(job)["attempts"] if a["generation"] == generation]
            return attempts[0]["nodes"][rank]["instance_id"] if attempts else None

        name = until(found, f"a machine for job {job}")
        by_name = lambda: next((p for p in self._folder.glob("*/instance") if p.read_text().strip() == name), None)  # noqa: E731
        return Machine(self.home, until(by_name, f"the network of {name}").parent.name, name)

    def forget(self, machine: Machine) -> None:
        """Have the cloud deny that it ever knew this machine, which goes on."""
        (self.home / "forgotten" / machine.name).touch()

    def machines(self) -> list[Machine]:
        known = [(p.parent.name, p.read_text().strip()) for p in self._folder.glob("*/instance")]
        return [Machine(self.home, number, name) for number, name in known]

    def end(self) -> None:
        """Nothing of it is left."""
        self.stop(signal.SIGKILL)
        for machine in self.machines():
            with contextlib.suppress(OSError, KeyError):
                if machine.is_on:
                    os.kill(machine.pid, signal.SIGKILL)
        until(lambda: not any(m.is_on for m in self.machines()), "the end of every machine")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """This thread, and what it starts, in a network of its own with a bridge for machines."""
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"partitions need root and {', '.join(missing) or 'the tools that are here'}")
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        syscalls.unshare(CLONE_NEWNET)
    except OSError as error:
        pytest.skip(f"a network namespace can not be had here: {error}")
    try:
        ip("link", "set", "lo", "up")
        ip("link", "add", "bridge0", "address", CONTROLLER_MAC, "type", "bridge")
        ip("address", "add", f"{CONTROLLER}/24", "dev", "bridge0")
        ip("link", "set", "bridge0", "up")
        yield
    finally:
        ctypes.CDLL(None).setns(before, CLONE_NEWNET)
        os.close(before)


@pytest.fixture(scope="module")
def config() -> str:
    """The daemon's; a module may have its own."""
    return CONFIG


@pytest.fixture(scope="module")
def rig(network: None, config: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(config)
    rig = Rig(home)
    rig.start()
    yield rig
    rig.end()


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`until`: the first true answer of a condition."""
    return until
