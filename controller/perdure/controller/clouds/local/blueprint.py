"""What a machine is made of: its address, its environment, what it sees of this computer, what it knows of itself."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from perdure.controller.clouds.base import LaunchRequest, Standing
from perdure.controller.clouds.local import layout, machine

# Of the daemon's environment, a machine gets these and nothing else: the rest may hold secrets.
PASSED_ON = (
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
ADDRESSES = 254 * 254  # 127.77.1.1 … 127.77.254.254: loopback, each machine its own
NEXT_ADDRESS = "next-address"
CARETAKER = "caretaker.py"


@dataclass(frozen=True)
class Shared:
    """Folders of this computer: the controller's home, which machines do not see, and two of it that they do."""

    home: Path
    artifacts: Path
    buckets: Path


def draw(
    request: LaunchRequest, rank: int, id: str, ip: str, kind: str, shared: Shared, now: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes into state.json and spec.json."""
    offer, folder = request.offer, shared.home / "local" / "instances" / id / layout.MACHINE
    apart = kind != machine.PROCESSES
    home = layout.NODE_HOME if apart else str(folder / "home")
    state_dir = layout.NODE_STATE if apart else str(folder / "state")
    artifacts = layout.NODE_ARTIFACTS if apart else str(shared.artifacts)
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
        "HOME": home,
        "PERDURE_ENDPOINT": request.bootstrap.endpoint,
        "PERDURE_TOKEN": request.bootstrap.token,
        "PERDURE_RANK": str(rank),
        "PERDURE_STATE_DIR": state_dir,
        "PERDURE_NODE_IP": ip,
        "PERDURE_ARTIFACTS_DIR": artifacts,
    }
    if request.bootstrap.fingerprint:
        env["PERDURE_FINGERPRINT"] = request.bootstrap.fingerprint
    if not apart:
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
    }
    spec = {
        "isolation": kind,
        "plan": plan(shared, id, ip),
        "command": [sys.executable, f"{artifacts}/{request.bootstrap.artifacts['agent']}"],
        "env": env,
        "node_home": home,
        "folders": [] if apart else [str(folder / name) for name in ("home", "state", "tmp")],
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


def stand(spec: dict[str, Any], standing: Standing, shared: Shared, id: str) -> None:
    """Make it the spec of a controller's machine: it sees the state's folder and what machines are made of, under the
    names that these have outside, and asks its host to start other machines beside it."""
    folder = shared.home / "local"
    spec["plan"]["kept"] = [standing.home, str(folder), str(shared.artifacts)]
    spec["command"] = [sys.executable, f"{standing.home}/{CARETAKER}"]
    spec["starts_others"] = True
    spec["env"] = {name: value for name, value in spec["env"].items() if name in PASSED_ON or name in ("PATH", "HOME")}
    spec["env"][layout.ASK_HOST] = str(folder / "instances" / id)


def plan(shared: Shared, hostname: str, ip: str) -> dict[str, Any]:
    """What `rootfs.enter` is to build."""
    prefixes = {path for prefix in (sys.prefix, sys.base_prefix) for path in (prefix, os.path.realpath(prefix))}
    return {
        "hidden": str(shared.home),
        "artifacts": str(shared.artifacts),
        "buckets": str(shared.buckets),
        "visible": sorted(prefixes),
        "hostname": hostname,
        "ip": ip,
    }


def buckets_on_node(shared: Shared, kind: str) -> str:
    return str(shared.buckets) if kind == machine.PROCESSES else layout.NODE_BUCKETS


def next_address(folder: Path, used: set[str]) -> str:
    """A loopback address that no living machine has, and that none had lately. Call it under the gate."""
    path = folder / NEXT_ADDRESS
    try:
        number = int(path.read_text())
    except (FileNotFoundError, ValueError):
        number = crc32(str(folder).encode())  # two homes on one computer seldom begin alike
    while (address := _address(number)) in used:
        number += 1
    new = folder / f"{NEXT_ADDRESS}.new"
    new.write_text(str((number + 1) % ADDRESSES))
    new.rename(path)
    return address


def _address(number: int) -> str:
    high, low = divmod(number % ADDRESSES, 254)
    return f"127.77.{high + 1}.{low + 1}"
