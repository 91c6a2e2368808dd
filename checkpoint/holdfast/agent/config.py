"""What the machine's boot script tells the agent, in environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent.tls import read_fingerprint

DEFAULT_STATE_DIR = "/var/lib/holdfast"
DEFAULT_POWER_OFF = "shutdown -h now"


@dataclass(frozen=True)
class Config:
    """`endpoint`: base URL of the controller. `token` is never printed, nor handed to the workload. `fingerprint`: of
    the one certificate that the controller may show.

    `metadata_endpoint` replaces the spec's. `artifacts_dir` holds files named by sha256, looked in before downloading.
    """

    endpoint: str
    token: str = field(repr=False)
    rank: int
    state_dir: Path
    node_ip: str | None = None
    metadata_endpoint: str | None = None
    artifacts_dir: Path | None = None
    power_off: str = DEFAULT_POWER_OFF
    fingerprint: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Raises ValueError, with what is missing or wrong."""
        for name in ("HOLDFAST_ENDPOINT", "HOLDFAST_TOKEN", "HOLDFAST_RANK"):
            if not environ.get(name):
                raise ValueError(f"{name} is not set: the agent is started by a machine's boot script, which sets it")
        endpoint = environ["HOLDFAST_ENDPOINT"].rstrip("/")
        if not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"HOLDFAST_ENDPOINT is {endpoint!r}: give a http:// or https:// URL")
        if not environ["HOLDFAST_RANK"].isdigit():
            raise ValueError(f"HOLDFAST_RANK is {environ['HOLDFAST_RANK']!r}: give a whole number from 0")
        fingerprint = environ.get("HOLDFAST_FINGERPRINT")
        if fingerprint and not endpoint.startswith("https://"):
            raise ValueError(f"HOLDFAST_FINGERPRINT is set, and HOLDFAST_ENDPOINT is {endpoint!r}: give a https:// URL")
        artifacts_dir = environ.get("HOLDFAST_ARTIFACTS_DIR")
        return cls(
            endpoint=endpoint,
            token=environ["HOLDFAST_TOKEN"],
            rank=int(environ["HOLDFAST_RANK"]),
            state_dir=Path(environ.get("HOLDFAST_STATE_DIR") or DEFAULT_STATE_DIR).absolute(),
            node_ip=environ.get("HOLDFAST_NODE_IP") or None,
            metadata_endpoint=environ.get("HOLDFAST_METADATA_ENDPOINT") or None,
            artifacts_dir=Path(artifacts_dir) if artifacts_dir else None,
            power_off=environ.get("HOLDFAST_POWER_OFF") or DEFAULT_POWER_OFF,
            fingerprint=read_fingerprint(fingerprint) if fingerprint else None,
        )
