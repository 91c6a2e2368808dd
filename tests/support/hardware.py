"""Gives each instance a real machine: a process tree of its own on this computer, as the local cloud makes them.

Like cloud-init, it runs the instance's user data once. Like EC2, it serves IMDSv2, at an address of its own that the
environment names (PERDURE_METADATA_ENDPOINT), unless the cloud names another. All else it has to learn from there.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from perdure.controller.clouds.base import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local import blueprint, isolation, launcher, layout, machine
from perdure.controller.clouds.local.instances import Instances, Record
from perdure.recovery.market import Market, Offer

# What cloud-init does with user data: it follows a cloud-config (`cloud_config`), or runs a script. The machine is on
# until it is told to power off.
CLOUD_INIT = """
export PERDURE_METADATA_ENDPOINT="${METADATA_ENDPOINT:-$PERDURE_METADATA_ENDPOINT}"
case "$USER_DATA" in '#cloud-config'*)
    "$PYTHON" -c "$CLOUD_CONFIG"
    exec sleep infinity ;;
esac
unset PYTHON CLOUD_CONFIG ROLE IMAGE_FILES
printf %s "$USER_DATA" > "$HOME/.user-data" && chmod 700 "$HOME/.user-data"
unset USER_DATA METADATA_ENDPOINT
"$HOME/.user-data"
exec sleep infinity
"""
_CLOUD_CONFIG = Path(__file__).with_name("cloud_config.py").read_text()
# What a machine must find out by itself.
NOT_TOLD = ("PERDURE_ENDPOINT", "PERDURE_TOKEN", "PERDURE_RANK", "PERDURE_ARTIFACTS_DIR")


@dataclass(frozen=True)
class Hardware:
    """What is to be started. `id` is its hostname, too. `metadata_endpoint`: None for its host's own IMDSv2, which has
    `metadata` beside what every machine's has. `role`: the environment of what runs with the machine's role.
    `image_files`: path → content, of what the image brings along for it."""

    id: str
    region: str
    zone: str
    instance_type: str
    market: Market
    user_data: str
    ip: str
    metadata: dict[str, str] = field(default_factory=dict)
    metadata_endpoint: str | None = None
    role: dict[str, str] = field(default_factory=dict)
    image_files: dict[str, str] = field(default_factory=dict)


class Machines:
    """`cloud`: whose they are. `folder`: where they live. `hidden`: what none sees, such as the controller's home."""

    def __init__(self, cloud: str, folder: Path, hidden: Path) -> None:
        self._cloud = cloud
        self._folder = folder
        self._instances = Instances(cloud, folder / "instances")
        self._shared = blueprint.Shared(hidden, folder / "artifacts", folder / "buckets")
        for path in (self._instances.folder, self._shared.artifacts, self._shared.buckets):
            path.mkdir(parents=True, exist_ok=True)
        plan = blueprint.plan(self._shared, "perdure-try", "127.0.0.1")
        self._kind = isolation.find("auto", plan, folder).kind
        self._starting: list[threading.Thread] = []

    def new_address(self) -> str:
        return blueprint.next_address(self._folder, {record.ip for record in self._instances.living()})

    def start(self, machines: list[Hardware]) -> None:
        """Returns at once; the machines boot. One that does not is found ended."""
        prepared = [self._prepare(one) for one in machines]
        thread = threading.Thread(target=self._boot, args=(prepared,), daemon=True)
        self._starting = [one for one in self._starting if one.is_alive()] + [thread]
        thread.start()

    def find(self, id: str) -> Record | None:
        return self._instances.get(id)

    def is_booting(self, id: str) -> bool:
        record = self.find(id)
        return record is not None and record.state["state"] == layout.LAUNCHING and not record.is_gone

    def terminate(self, id: str) -> None:
        self._order(id, layout.TERMINATE, {})

    def interrupt(self, id: str, notice_s: float | None) -> None:
        """Take it away after `notice_s`, of which its metadata tells; at once, without a word, if None."""
        self._order(id, layout.INTERRUPT, {"notice_s": notice_s})

    def agent_log(self, id: str) -> str:
        """What the machine wrote to its console."""
        path = self._instances.folder / id / layout.AGENT_LOG
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End them all, and wait for that."""
        for thread in self._starting:
            thread.join()
        launcher.give_back([record.path for record in self._instances.living()])

    def _prepare(self, one: Hardware) -> launcher.Prepared:
        offer = Offer(self._cloud, one.region, one.zone, one.instance_type, one.market, 0, 0, 0, 0)
        owner = Owner(self._cloud, 0, 0, 0, one.id)
        request = LaunchRequest(owner, offer, 1, Bootstrap("", "", {"agent": ""}), one.id)
        state, spec = blueprint.draw(request, 0, one.id, one.ip, self._kind, self._shared, _now())
        for name in NOT_TOLD:
            del spec["env"][name]
        spec["env"]["USER_DATA"] = one.user_data
        spec["env"] |= {"PYTHON": sys.executable, "CLOUD_CONFIG": _CLOUD_CONFIG, "ROLE": json.dumps(one.role)}
        spec["env"]["IMAGE_FILES"] = json.dumps(one.image_files)
        if one.metadata_endpoint is not None:
            spec["env"]["METADATA_ENDPOINT"] = one.metadata_endpoint
        spec["command"] = ["/bin/sh", "-c", CLOUD_INIT]
        spec["metadata"] |= one.metadata
        return launcher.prepare(self._instances.folder / one.id, state, spec)

    def _boot(self, prepared: list[launcher.Prepared]) -> None:
        try:
            launcher.start(prepared)
        except (launcher.HostFailed, machine.MachineFailed, OSError) as error:
            print(f"{self._cloud}: a machine did not start: {error}")

    def _order(self, id: str, order: str, value: dict[str, float | None]) -> None:
        record = self.find(id)
        if record is not None and not record.is_gone:
            layout.give_order(str(record.path), order, dict(value))


def _now() -> float:
    return time.time()  # noqa: TID251 - hardware has the real clock
