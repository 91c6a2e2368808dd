"""A cloud that can host a controller, with what the tests do on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from perdure.controller.clouds.base.protocol import (
    Disk,
    EventuallyConsistent,
    HostRequirements,
    Instance,
    InstanceState,
    LaunchRequest,
)
from perdure.controller.hosting import config
from perdure.controller.hosting.retry import HostingCloud
from perdure.recovery.market.view import Market
from support.helpers.launch_requests import launch_request
from support.helpers.timing import Deadline

PROGRAM = "import signal\nwhile True: signal.pause()\n"
TIMEOUT_S = 20.0
T = TypeVar("T")


@dataclass
class HostingBench:
    """A hosting cloud under test."""

    cloud: HostingCloud
    zones: tuple[str, str]  # two zones of one region
    instance_type: str  # offered in these zones
    resources: Callable[[], list[str]]  # of a hosted controller, besides its disk and machine
    region: str

    def request(self, token: str, name: str = "hosting-1", zone: str | None = None) -> LaunchRequest:
        made = launch_request(
            self.cloud.name,
            self.region,
            zone or self.zones[0],
            self.instance_type,
            token,
            market=Market.ON_DEMAND,
            disk_gib=20,
        )
        owner = type(made.owner)(name, 0, 0, 0, token)
        return LaunchRequest(owner, made.offer, 1, made.bootstrap, "perdure-controller", 20)

    def disk(self, name: str = "hosting-1", zone: str | None = None, gib: int = 20) -> Disk:
        return self.cloud.state_disk(name, region=self.region, zone=zone or self.zones[0], gib=gib)

    def needs(self, name: str = "hosting-1") -> HostRequirements:
        disk = self.disk(name)
        home = config.home_directory(self.cloud.name, disk)
        return HostRequirements(PROGRAM, home, disk, 8443, "192.0.2.0/24", "perdure-controller")

    def launch_host(self, token: str, name: str = "hosting-1") -> Instance:
        """Repeat the launch until it succeeds."""
        needs = self.needs(name)
        return self.until(lambda: self.cloud.launch_host(self.request(token, name), needs))

    def attach_disk(self, instance: Instance, name: str = "hosting-1") -> str:
        """Wait for the address."""

        def once() -> str | None:
            (now,) = self.cloud.describe(self.region, [instance.id])
            return self.cloud.attach_disk(now, self.disk(name))

        address = self.until(once)
        assert address is not None
        return address

    def end(self, *instances: Instance) -> None:
        self.cloud.terminate(self.region, [one.id for one in instances])
        self.until(
            lambda: not [left for one in instances for left in self.cloud.list_owned(one.owner.controller)] or None
        )

    def until(self, call: Callable[[], T | None]) -> T:
        """Repeat `call` until it returns something without raising EventuallyConsistent."""
        deadline = Deadline(TIMEOUT_S)
        while True:
            try:
                if (reported := call()) is not None:
                    return reported
            except EventuallyConsistent:
                pass
            assert not deadline.has_passed, f"not within {deadline}"
            Event().wait(0.02)

    def finish(self, do: Callable[[], None]) -> None:
        """Repeat until it succeeds."""
        self.until(lambda: do() or True)

    def see(self, instance: Instance) -> Instance:
        def running() -> Instance | None:
            (now,) = self.cloud.describe(self.region, [instance.id])
            return now if now.state is not InstanceState.PENDING else None

        return self.until(running)
