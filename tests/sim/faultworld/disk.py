"""What a node keeps: it survives the agent's own death, and goes with the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faultworld.workload import Ended
from perdure.agent.report import Report
from perdure.agent.state import Directive


@dataclass
class Disk:
    """What survives the agent's own death."""

    spec: dict[str, Any] | None = None
    directive: Directive = field(default_factory=Directive)
    notice: dict[str, Any] | None = None
    drain_began: float | None = None
    report: Report = field(default_factory=Report)
    prepared: bool = False
    setup: Ended | None = None
    run: Ended | None = None
    log: bytearray = field(default_factory=bytearray)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False
