"""The disk of a node: it survives the agent, but not the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faultworld.workload import ProgramExit
from perdure.agent.link.outbox import Report
from perdure.agent.state_file import Directive


@dataclass
class Disk:
    """The state that the agent and its workload have stored."""

    spec: dict[str, Any] | None = None
    directive: Directive = field(default_factory=Directive)
    notice: dict[str, Any] | None = None
    drain_began: float | None = None  # by the node's clock
    report: Report = field(default_factory=Report)
    prepared: bool = False  # the buckets are mounted
    setup: ProgramExit | None = None  # how the stage ended
    run: ProgramExit | None = None
    log: bytearray = field(default_factory=bytearray)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False  # the final report was sent or is to be sent
