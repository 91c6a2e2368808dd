"""The interruption notice: the one value that every notice source yields and the controller receives."""

from __future__ import annotations

from dataclasses import dataclass

REBALANCE = "rebalance"
SHUTDOWN = "shutdown"


@dataclass(frozen=True)
class Notice:
    """The announcement that this node will be taken away.

    `action` is the cloud's ("terminate", "stop", "hibernate", "reboot", "redeploy"), "shutdown" (the machine itself is
    going down), or "rebalance": the risk has grown, nothing is decided. `deadline` is in epoch seconds; None for a
    rebalance.
    """

    deadline: float | None
    action: str
    source: str

    @property
    def is_final(self) -> bool:
        """Whether the node will surely be taken."""
        return self.action != REBALANCE
