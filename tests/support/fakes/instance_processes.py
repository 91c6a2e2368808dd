"""Runs a real machine for each instance: a process tree on this computer, as the local cloud creates them.

Like cloud-init, it runs the instance's user data once. Like EC2, it serves IMDSv2, at the address named by the
environment variable PERDURE_METADATA_ENDPOINT, unless the cloud names another. The machine gets no other information.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.host import host_process, launcher
from perdure.controller.clouds.local.instances import InstanceRecord, InstanceStore
from perdure.controller.clouds.local.machine import isolation, machine_spec, process_tree
from perdure.recovery.market.view import Market, Offer

# Stands for cloud-init: it processes a cloud-config (`cloud_init`), or runs a script. The machine runs until it is
# powered off.
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
# Of later boots: user data runs at the first one only.
CLOUD_INIT_AGAIN = """
export PERDURE_METADATA_ENDPOINT="${METADATA_ENDPOINT:-$PERDURE_METADATA_ENDPOINT}"
unset PYTHON CLOUD_CONFIG ROLE IMAGE_FILES USER_DATA METADATA_ENDPOINT
for script in /var/lib/cloud/scripts/per-boot/*; do "$script"; done
exec sleep infinity
"""
_CLOUD_CONFIG = Path(__file__).with_name("cloud_init.py").read_text()
# Variables that a machine does not get.
HIDDEN_VARIABLES = ("PERDURE_ENDPOINT", "PERDURE_TOKEN", "PERDURE_RANK", "PERDURE_ARTIFACTS_DIR")


@dataclass(frozen=True)
class InstanceProcess:
    """A machine to start."""

    id: str  # its hostname, too
    region: str
    zone: str
    instance_type: str
    market: Market
    user_data: str
    ip: str
    metadata: dict[str, str] = field(default_factory=dict)  # further values of the host's IMDSv2
    metadata_endpoint: str | None = None  # None: the host's IMDSv2
    role: dict[str, str] = field(default_factory=dict)  # the environment of programs with the machine's role
    image_files: dict[str, str] = field(default_factory=dict)  # path → content, of files in the image
    keeps_disk: bool = False  # when it is stopped, or powers itself off


class Machines:
    """The machines of a cloud. `folder` has their files. They cannot see `hidden`, such as the controller's home."""

    def __init__(self, cloud: str, folder: Path, hidden: Path) -> None:
        self._cloud = cloud
        self._folder = folder
        self._instances = InstanceStore(cloud, folder / "instances")
        self._shared = machine_spec.SharedFolders(hidden, folder / "artifacts", folder / "buckets")
        for path in (self._instances.folder, self._shared.artifacts, self._shared.buckets):
            path.mkdir(parents=True, exist_ok=True)
        plan = machine_spec.rootfs_plan(self._shared, "perdure-try", "127.0.0.1")
        self._kind = isolation.detect("auto", plan, folder).kind
        self._starting: list[threading.Thread] = []

    def new_address(self) -> str:
        return machine_spec.next_address(self._folder, {record.ip for record in self._instances.living()})

    def start(self, machines: list[InstanceProcess]) -> None:
        """Start machines, without waiting until they have booted. One that fails to boot has ended."""
        prepared = [self._prepare(one) for one in machines]
        thread = threading.Thread(target=self._boot, args=(prepared,), daemon=True)
        self._starting = [one for one in self._starting if one.is_alive()] + [thread]
        thread.start()

    def stop(self, id: str) -> None:
        self._command(id, layout.STOP, {})

    def start_again(self, machines: list[InstanceProcess], *, runs_user_data: bool = False) -> None:
        """Start machines that were stopped, without waiting until they have booted.

        `runs_user_data`: whether their image does so at every boot; otherwise it runs the scripts for each boot.
        """
        prepared = []
        for one in machines:
            state, spec = self._build(one)
            spec["command"] = ["/bin/sh", "-c", CLOUD_INIT if runs_user_data else CLOUD_INIT_AGAIN]
            path = self._instances.folder / one.id
            prepared.append(launcher.prepare_again(path, {**state, "state": layout.HALTED}, spec))
        thread = threading.Thread(target=self._boot, args=(prepared,), daemon=True)
        self._starting.append(thread)
        thread.start()

    def find(self, id: str) -> InstanceRecord | None:
        return self._instances.get(id)

    def is_booting(self, id: str) -> bool:
        record = self.find(id)
        is_off = record is not None and record.state["state"] in (layout.LAUNCHING, layout.HALTED)
        return is_off and record is not None and not record.is_gone

    def terminate(self, id: str) -> None:
        self._command(id, layout.TERMINATE, {})
        if (record := self.find(id)) is not None and record.is_halted:
            self._instances.end_halted(record)

    def interrupt(self, id: str, notice_s: float | None) -> None:
        """End the machine `notice_s` after a notice in its metadata; at once and without one, if None."""
        self._command(id, layout.INTERRUPT, {"notice_s": notice_s})

    def agent_log(self, id: str) -> str:
        """The console output of the machine."""
        path = self._instances.folder / id / layout.AGENT_LOG
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End all machines, and wait until they have ended."""
        for thread in self._starting:
            thread.join()
        launcher.end_and_wait([record.path for record in self._instances.living()])

    def _prepare(self, one: InstanceProcess) -> host_process.Prepared:
        return launcher.prepare(self._instances.folder / one.id, *self._build(one))

    def _build(self, one: InstanceProcess) -> tuple[dict[str, Any], dict[str, Any]]:
        """The contents of state.json and spec.json."""
        offer = Offer(self._cloud, one.region, one.zone, one.instance_type, one.market, 0, 0, 0, 0)
        owner = Owner(self._cloud, 0, 0, 0, one.id)
        request = LaunchRequest(owner, offer, 1, Bootstrap("", "", {"agent": ""}), one.id, keeps_disks=one.keeps_disk)
        state, spec = machine_spec.build(request, 0, one.id, one.ip, self._kind, self._shared, _now())
        for name in HIDDEN_VARIABLES:
            del spec["env"][name]
        spec["env"]["USER_DATA"] = one.user_data
        spec["env"] |= {"PYTHON": sys.executable, "CLOUD_CONFIG": _CLOUD_CONFIG, "ROLE": json.dumps(one.role)}
        spec["env"]["IMAGE_FILES"] = json.dumps(one.image_files)
        if one.metadata_endpoint is not None:
            spec["env"]["METADATA_ENDPOINT"] = one.metadata_endpoint
        spec["command"] = ["/bin/sh", "-c", CLOUD_INIT]
        spec["metadata"] |= {**one.metadata, "user-data": one.user_data}
        return state, spec

    def _boot(self, prepared: list[host_process.Prepared]) -> None:
        try:
            launcher.start_hosts(prepared)
        except (launcher.HostStartError, process_tree.MachineStartError, OSError) as error:
            print(f"{self._cloud}: a machine did not start: {error}")

    def _command(self, id: str, command: str, value: dict[str, float | None]) -> None:
        record = self.find(id)
        if record is not None and not record.is_gone:
            layout.write_command(str(record.path), command, dict(value))


def _now() -> float:
    return time.time()  # noqa: TID251 - hardware has the real clock
