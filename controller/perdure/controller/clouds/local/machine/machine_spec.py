"""Builds the spec of a machine: its address, its environment, its view of this computer's files, its metadata."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from perdure.controller.clouds.base.protocol import HostRequirements, LaunchRequest
from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.machine import process_tree

# A machine inherits only these variables of the daemon's environment: others may contain secrets.
PASSED_ENVIRONMENT = (
    "LANG",
    "TERM",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "NIX_SSL_CERT_FILE",
    "PIP_CERT",
    "PERDURE_NO_FUSE",
)
ADDRESSES = 254 * 254  # 127.77.1.1 … 127.77.254.254: one loopback address per machine
NEXT_ADDRESS = "next-address"
INSTALLER = "installer.py"


@dataclass(frozen=True)
class SharedFolders:
    """Folders of this computer."""

    home: Path  # the controller's; hidden from machines, but for the next two
    artifacts: Path
    buckets: Path


def build(
    request: LaunchRequest, rank: int, id: str, ip: str, kind: str, shared: SharedFolders, now: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of state.json and spec.json."""
    offer, folder = request.offer, shared.home / "local" / "instances" / id / layout.MACHINE
    is_isolated = kind != process_tree.PROCESSES
    home = layout.NODE_HOME if is_isolated else str(folder / "home")
    state_dir = layout.NODE_STATE if is_isolated else str(folder / "state")
    artifacts = layout.NODE_ARTIFACTS if is_isolated else str(shared.artifacts)
    env = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
    env |= {
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
        "HOME": home,
        "PERDURE_ENDPOINT": request.bootstrap.endpoint,
        "PERDURE_TOKEN": request.bootstrap.token,
        "PERDURE_RANK": str(rank),
        "PERDURE_STATE_DIR": state_dir,
        "PERDURE_NODE_IP": ip,
        "PERDURE_ARTIFACTS_DIR": artifacts,
        "PERDURE_ONLY_PODMAN": "1",  # a container of Docker would be a process of this computer's daemon
        "PERDURE_OWN_ENV": "1",  # the first Python on its PATH is the controller's
    }
    if request.bootstrap.fingerprint:
        env["PERDURE_FINGERPRINT"] = request.bootstrap.fingerprint
    if not is_isolated:
        env["TMPDIR"] = str(folder / "tmp")
    instance = {
        "id": id,
        "rank": rank,
        "owner": asdict(request.owner),
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "market": offer.market.value,
        "ip": ip,
        "name": request.name,
        "labels": request.labels,
        "created_at": now,
        "keeps_disk": request.keeps_disks,
    }
    spec = {
        "isolation": kind,
        "plan": {**rootfs_plan(shared, id, ip), "keeps_disk": request.keeps_disks},
        "command": [sys.executable, f"{artifacts}/{request.bootstrap.artifacts['agent']}"],
        "env": env,
        "node_home": home,
        "folders": [] if is_isolated else [str(folder / name) for name in ("home", "state", "tmp")],
        "metadata": {
            "instance-id": id,
            "instance-type": offer.instance_type,
            "instance-life-cycle": offer.market.value,
            "placement/availability-zone": offer.zone,
            "placement/region": offer.region,
            "local-ipv4": ip,
            "local-hostname": id,
        },
    }
    return {"state": layout.LAUNCHING, "instance": instance}, spec


def make_controller_host(spec: dict[str, Any], needs: HostRequirements, shared: SharedFolders, id: str) -> None:
    """Change `spec` to that of a controller's machine.

    It sees the folders of its state and of machines under the paths that they have outside, and requests other machines
    from its spawner.
    """
    folder = shared.home / "local"
    spec["plan"]["persistent"] = [needs.home, str(folder), str(shared.artifacts)]
    spec["command"] = [sys.executable, f"{needs.home}/{INSTALLER}"]
    spec["has_spawner"] = True
    spec["env"] = {
        name: value for name, value in spec["env"].items() if name in PASSED_ENVIRONMENT or name in ("PATH", "HOME")
    }
    spec["env"][layout.PARENT_HOST_VARIABLE] = str(folder / "instances" / id)


def rootfs_plan(shared: SharedFolders, hostname: str, ip: str) -> dict[str, Any]:
    """The plan for `rootfs.enter`."""
    prefixes = {path for prefix in (sys.prefix, sys.base_prefix) for path in (prefix, os.path.realpath(prefix))}
    return {
        "hidden": str(shared.home),
        "artifacts": str(shared.artifacts),
        "buckets": str(shared.buckets),
        "visible": sorted(prefixes),
        "hostname": hostname,
        "ip": ip,
    }


def buckets_on_node(shared: SharedFolders, kind: str) -> str:
    return str(shared.buckets) if kind == process_tree.PROCESSES else layout.NODE_BUCKETS


def next_address(folder: Path, used: set[str]) -> str:
    """A loopback address that no machine has, nor had recently. Call it under the cloud's launch lock."""
    path = folder / NEXT_ADDRESS
    try:
        number = int(path.read_text())
    except (FileNotFoundError, ValueError):
        number = crc32(str(folder).encode())  # different homes on one computer begin at different addresses
    while (address := _address(number)) in used:
        number += 1
    new = folder / f"{NEXT_ADDRESS}.new"
    new.write_text(str((number + 1) % ADDRESSES))
    new.rename(path)
    return address


def _address(number: int) -> str:
    high, low = divmod(number % ADDRESSES, 254)
    return f"127.77.{high + 1}.{low + 1}"
