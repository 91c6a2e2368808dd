"""A local cloud whose agents are scripts of the test's, and the eyes to see what is left of its machines."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clock import SystemClock
from perdure.controller.clouds.base import Bootstrap, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.recovery.market import Market

PATIENCE_S = 20.0
CONTROLLER = "ctl"
# Every script may use these. `say` leaves a word where the test finds it: in a bucket.
PRELUDE = """
import json, os, pathlib, signal, subprocess, sys, time
rank = os.environ["PERDURE_RANK"]
said = pathlib.Path({buckets!r}) / "said"
def say(name, text=""):
    (said / f".{{name}}.{{rank}}").write_text(str(text))
    (said / f".{{name}}.{{rank}}").rename(said / f"{{name}}.{{rank}}")
def stay():
    while True: signal.pause()
"""


def wait_for(what: Callable[[], Any]) -> Any:
    """The first true answer of `what`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := what()):
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)
    return answer


def processes(marker: str) -> list[str]:
    """Command lines on this computer, zombies aside, that contain the marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            found.append(f"{pid}: {line}")
    return found


@dataclass
class Site:
    """One PERDURE_HOME with a local cloud. `marker` is in the command line of every host of it, and of no other."""

    home: Path
    cloud: LocalCloud
    marker: str = field(default_factory=lambda: f"7{uuid.uuid4().int % 10**8:08d}")

    wait_for = staticmethod(wait_for)

    def __post_init__(self) -> None:
        (self.home / "local/buckets/said").mkdir(parents=True, exist_ok=True)
        (self.home / "artifacts").mkdir(exist_ok=True)

    def request(self, script: str, *, nodes: int = 1, token: str = "t") -> LaunchRequest:
        text = (PRELUDE.format(buckets=self.cloud.buckets_on_node()) + script).encode()
        digest = hashlib.sha256(text).hexdigest()
        (self.home / "artifacts" / digest).write_bytes(text)
        offer = min((o for o in self.cloud.offers() if o.market is Market.SPOT), key=lambda o: o.price_per_hour)
        bootstrap = Bootstrap("http://127.0.0.1:1", "the-attempt-token", {"agent": digest})
        return LaunchRequest(Owner(CONTROLLER, 1, 0, 1, token), offer, nodes, bootstrap, "job")

    def launch(self, script: str, *, nodes: int = 1, token: str = "t") -> Sequence[Instance]:
        return self.cloud.launch(self.request(script, nodes=nodes, token=token))

    def heard(self, name: str, rank: int = 0) -> str:
        """What the machine said under this name, once it has."""
        path = self.home / "local/buckets/said" / f"{name}.{rank}"
        wait_for(path.exists)
        return path.read_text()

    def folder(self, instance: Instance) -> Path:
        return self.home / "local/instances" / instance.id

    def see(self, instance: Instance) -> Instance:
        (seen,) = self.cloud.describe(instance.region, [instance.id])
        return seen

    def is_gone(self, instance: Instance) -> bool:
        return self.see(instance).state is InstanceState.GONE

    def until_gone(self, instance: Instance) -> Instance:
        wait_for(lambda: self.is_gone(instance))
        return self.see(instance)

    def terminate(self, instance: Instance) -> Instance:
        self.cloud.terminate(instance.region, [instance.id])
        return self.until_gone(instance)

    def hosts(self) -> list[str]:
        return processes(str(self.home))

    def processes(self) -> list[str]:
        return processes(self.marker)

    def reopened(self) -> LocalCloud:
        """The same home, as another daemon sees it."""
        return LocalCloud(self.home, self.cloud.settings, SystemClock())


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def open_one(isolation: str = "auto", folder: Path = tmp_path, **settings: Any) -> Site:
        home = folder / f"home-{len(sites)}"
        home.mkdir()
        mapping = {"isolation": isolation, **settings}
        sites.append(Site(home, LocalCloud(home, LocalSettings.from_mapping(mapping), SystemClock())))
        return sites[-1]

    yield open_one
    for site in sites:
        living = site.cloud.list_owned(CONTROLLER)
        for instance in living:
            site.cloud.terminate(instance.region, [instance.id])
        wait_for(lambda: not site.hosts())  # noqa: B023


@pytest.fixture(params=["overlay", "bind", "processes"])
def site(request: pytest.FixtureRequest, open_site: Callable[..., Site]) -> Site:
    """A site of each kind of isolation that this computer can give."""
    if request.param != "processes" and not can_have(open_site, request.param):
        pytest.skip(f"no {request.param} machines on this computer")
    return open_site(request.param)


@pytest.fixture(params=["overlay", "bind"])
def apart(request: pytest.FixtureRequest, open_site: Callable[..., Site]) -> Site:
    """A site whose machines have a file system and processes of their own."""
    if not can_have(open_site, request.param):
        pytest.skip(f"no {request.param} machines on this computer")
    return open_site(request.param)


_had: dict[str, bool] = {}


def can_have(open_site: Callable[..., Site], kind: str) -> bool:
    if kind not in _had:
        best = open_site().cloud.isolation()
        _had["overlay"] = best == "overlay"
        # Where an overlay can be had, so can bind mounts; where it can not, the best is known.
        _had["bind"] = best in ("overlay", "bind")
    return _had[kind]


@pytest.fixture
def mounts(tmp_path: Path) -> Callable[[], list[str]]:
    """This computer's mounts that lie below the test's folder, or are made of what lies there."""
    return lambda: [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp_path) in line]


@pytest.fixture
def run_elsewhere() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a Python text in a process of its own, as a daemon that goes away."""
    import sys

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    return run
