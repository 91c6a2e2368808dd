"""The node spec as the controller serves it: what to run on this node, and what that needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.agent.workload.container.image_name import ContainerSpec
from perdure.agent.workload.readiness import ProbeSettings

PROTOCOL = 1


@dataclass(frozen=True)
class NoticeSettings:
    """Which metadata service announces interruptions, where it is, and the seconds between two polls."""

    kind: str
    endpoint: str
    poll_s: float


@dataclass(frozen=True)
class Hook:
    """Shell commands that run when the machine goes away. `events`: `preemption`, `down`, or both."""

    run: str
    events: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class NodeSpec:
    """See docs/reference/agent-protocol.md. `mounts` is kept as received: `storage.mounts.Mounts` parses it."""

    job_id: int
    task_index: int
    generation: int
    rank: int
    num_nodes: int
    setup: str | None
    run: str | None
    env: dict[str, str]
    gpus_per_node: int
    workdir: dict[str, Any] | None
    uploads: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    artifacts: dict[str, str]
    notice: NoticeSettings | None
    drain_s: float
    power_off_after_s: float
    hooks: tuple[Hook, ...] = ()
    python: str | None = None  # the version of Python that the task wants; None: the image's
    container: ContainerSpec | None = None  # what the scripts run in
    probe: ProbeSettings | None = None  # of a replica of a service: how to find out whether it is ready
    is_host: bool = False  # it holds a machine of a cluster: `lifecycle.slot_host` runs instead of `run`
    home: dict[str, Any] | None = None  # of a host: the folder of a bucket that keeps its home, as one of `mounts`
    awaits_rescue: bool = False  # of a host: `lifecycle.home_rescue` may have to save its home after the end
    revision: int = 0  # of a replica: it grows when the machine gets another version of the service

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> NodeSpec:
        """Raises ValueError when this agent does not support its version, KeyError when a field is missing."""
        if raw.get("version") != PROTOCOL:
            raise ValueError(
                f"the controller speaks version {raw.get('version')} of the agent protocol, this agent {PROTOCOL}"
            )
        notice = raw.get("notice")
        return cls(
            job_id=int(raw["job_id"]),
            task_index=int(raw["task_index"]),
            generation=int(raw["generation"]),
            rank=int(raw["rank"]),
            num_nodes=int(raw["num_nodes"]),
            setup=raw.get("setup"),
            run=raw.get("run"),
            env={str(name): str(value) for name, value in raw.get("env", {}).items()},
            gpus_per_node=int(raw.get("gpus_per_node", 0)),
            workdir=raw.get("workdir"),
            uploads=list(raw.get("uploads") or []),
            mounts=list(raw.get("mounts") or []),
            artifacts=dict(raw.get("artifacts") or {}),
            notice=NoticeSettings(notice["kind"], notice["endpoint"], float(notice["poll_s"])) if notice else None,
            drain_s=float(raw.get("drain_s", 60.0)),
            power_off_after_s=float(raw.get("power_off_after_s", 600.0)),
            hooks=tuple(
                Hook(str(hook["run"]), tuple(hook["events"]), float(hook["timeout_s"])) for hook in raw.get("hooks", ())
            ),
            python=(raw.get("runtime") or {}).get("python"),
            container=ContainerSpec.parse(raw["container"]) if raw.get("container") else None,
            probe=ProbeSettings.parse(raw["probe"]) if raw.get("probe") else None,
            is_host=bool(raw.get("host", False)),
            home=raw.get("home"),
            awaits_rescue=bool(raw.get("awaits_rescue", False)),
            revision=int(raw.get("revision") or 0),
        )
