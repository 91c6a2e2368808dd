"""A local cloud whose agents are scripts of the test."""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from perdure.controller.clouds.base.protocol import Bootstrap, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.view import Market
from support.helpers.timing import wait_until

TIMEOUT_S = 20.0
CONTROLLER = "ctl"
Value = TypeVar("Value")
# Functions for every script. `say` writes a text into a bucket, where the test reads it.
PRELUDE = """
import json, os, pathlib, signal, subprocess, sys, time
rank = os.environ["PERDURE_RANK"]
messages = pathlib.Path({buckets!r}) / "messages"
def say(name, text=""):
    (messages / f".{{name}}.{{rank}}").write_text(str(text))
    (messages / f".{{name}}.{{rank}}").rename(messages / f"{{name}}.{{rank}}")
def stay():
    while True: signal.pause()
"""


def wait_for(what: Callable[[], Value | None]) -> Value:
    """Wait for the first true value of `what`, and return it."""
    return wait_until(what, str(what), TIMEOUT_S, poll_s=0.01)


def processes(marker: str) -> list[str]:
    """Command lines of this computer's processes, without zombies, that contain the marker."""
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            lines.append(f"{pid}: {line}")
    return lines


@dataclass
class Site:
    """One PERDURE_HOME with a local cloud. `marker` is in the command lines of its host processes only."""

    home: Path
    cloud: LocalCloud
    marker: str = field(default_factory=lambda: f"7{uuid.uuid4().int % 10**8:08d}")

    wait_for = staticmethod(wait_for)

    def __post_init__(self) -> None:
        (self.home / "local/buckets/messages").mkdir(parents=True, exist_ok=True)
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

    def received(self, name: str, rank: int = 0) -> str:
        """Wait for the text that the machine wrote under this name."""
        path = self.home / "local/buckets/messages" / f"{name}.{rank}"
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


OpenSite = Callable[..., Site]
Mounts = Callable[[], list[str]]
RunElsewhere = Callable[[str], subprocess.CompletedProcess[str]]
