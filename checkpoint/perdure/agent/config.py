"""The agent's configuration: environment variables that the machine's boot script sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.agent.link.tls import parse_fingerprint

DEFAULT_STATE_DIR = "/var/lib/perdure"
DEFAULT_POWER_OFF = "shutdown -h now"


@dataclass(frozen=True)
class Config:
    """The validated environment."""

    endpoint: str  # base URL of the controller
    token: str = field(repr=False)  # never printed, never passed to the workload
    rank: int
    state_dir: Path
    node_ip: str | None = None
    metadata_endpoint: str | None = None  # replaces the one in the node spec
    artifacts_dir: Path | None = None  # files named by their sha256, searched before downloading
    power_off: str = DEFAULT_POWER_OFF  # a shell command
    grace_s: float | None = None  # how long the agent has between SIGTERM and SIGKILL; None: as long as a drain
    fingerprint: str | None = None  # SHA-256 of the only certificate that the controller may present

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Raises ValueError that names what is missing or wrong."""
        for name in ("PERDURE_ENDPOINT", "PERDURE_TOKEN", "PERDURE_RANK"):
            if not environ.get(name):
                raise ValueError(f"{name} is not set: the agent is started by a machine's boot script, which sets it")
        endpoint = environ["PERDURE_ENDPOINT"].rstrip("/")
        if not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"PERDURE_ENDPOINT is {endpoint!r}: give a http:// or https:// URL")
        if not environ["PERDURE_RANK"].isdigit():
            raise ValueError(f"PERDURE_RANK is {environ['PERDURE_RANK']!r}: give a whole number from 0")
        fingerprint = environ.get("PERDURE_FINGERPRINT")
        if fingerprint and not endpoint.startswith("https://"):
            raise ValueError(f"PERDURE_FINGERPRINT is set, and PERDURE_ENDPOINT is {endpoint!r}: give a https:// URL")
        grace = environ.get("PERDURE_GRACE_S")
        if grace and not grace.isdigit():
            raise ValueError(f"PERDURE_GRACE_S is {grace!r}: give a whole number of seconds")
        artifacts_dir = environ.get("PERDURE_ARTIFACTS_DIR")
        return cls(
            endpoint=endpoint,
            token=environ["PERDURE_TOKEN"],
            rank=int(environ["PERDURE_RANK"]),
            state_dir=Path(environ.get("PERDURE_STATE_DIR") or DEFAULT_STATE_DIR).absolute(),
            node_ip=environ.get("PERDURE_NODE_IP") or None,
            metadata_endpoint=environ.get("PERDURE_METADATA_ENDPOINT") or None,
            artifacts_dir=Path(artifacts_dir) if artifacts_dir else None,
            power_off=environ.get("PERDURE_POWER_OFF") or DEFAULT_POWER_OFF,
            grace_s=float(grace) if grace else None,
            fingerprint=parse_fingerprint(fingerprint) if fingerprint else None,
        )
