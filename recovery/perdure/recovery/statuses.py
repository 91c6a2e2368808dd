"""The states that the controller keeps, and the statuses that users see.

States say *what is going on*; why is a `Reason` beside them. Statuses are SkyPilot's names, derived from both.

What runs at every decision has members in names of its own, such as `_WAITING`: to look one up on its class costs as
much as a call (Python 3.11).
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What `perdure jobs queue` shows. Names are SkyPilot's `ManagedJobStatus`."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    FAILED_PRECHECKS = "FAILED_PRECHECKS"
    FAILED_NO_RESOURCE = "FAILED_NO_RESOURCE"
    FAILED_CONTROLLER = "FAILED_CONTROLLER"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_failed(self) -> bool:
        return self.value.startswith("FAILED")


TERMINAL = frozenset(
    {
        Status.SUCCEEDED,
        Status.CANCELLED,
        Status.FAILED,
        Status.FAILED_SETUP,
        Status.FAILED_PRECHECKS,
        Status.FAILED_NO_RESOURCE,
        Status.FAILED_CONTROLLER,
    }
)

EXIT_CODES = {Status.SUCCEEDED: 0, Status.CANCELLED: 103}
EXIT_FAILED = 100
EXIT_NOT_FINISHED = 101
EXIT_NOT_FOUND = 102


def exit_code(status: Status) -> int:
    """The exit code of `jobs launch` and `jobs logs` for a job in this status (SkyPilot's `JobExitCode`)."""
    if status.is_failed:
        return EXIT_FAILED
    return EXIT_CODES.get(status, EXIT_NOT_FINISHED)


class TaskState(StrEnum):
    """Where a task stands. The cause is a reason, never a state."""

    WAITING = "WAITING"  # no attempt of its own yet: its turn, or its back-off (`wake_at`), has not come
    PLACING = "PLACING"  # the newest attempt is being bought, booted and set up
    RUNNING = "RUNNING"  # the newest attempt's workload runs
    STOPPING = "STOPPING"  # the outcome is known; the workload is being brought to an end
    ENDED = "ENDED"


class AttemptState(StrEnum):
    """Where one attempt stands. Order is the order of life."""

    REQUESTED = "REQUESTED"  # the launch intent is open: machines may or may not exist
    BOOTING = "BOOTING"  # machines exist; not every agent has called yet
    SETTING_UP = "SETTING_UP"  # every agent has called: mounts and `setup`
    READY = "READY"  # every rank is set up and waits for leave to run
    RUNNING = "RUNNING"  # leave to run was given
    DRAINING = "DRAINING"  # told to stop: the workload saves, mounts are flushed
    STOPPED = "STOPPED"  # no workload runs any more; machines may still exist
    GONE = "GONE"  # the cloud confirms that every machine is gone


class NodePhase(StrEnum):
    """What a node's agent last said of itself. Values are the agent protocol's."""

    UNHEARD = "unheard"  # no agent has called yet
    BOOTED = "booted"  # agent called; waits for the addresses of its peers
    MOUNTING = "mounting"
    SETUP = "setup"
    READY = "ready"
    RUNNING = "running"
    FLUSHING = "flushing"  # the workload has ended; cached writes are going to the bucket
    ENDED = "ended"  # nothing of the workload runs, nothing more will be written


ENDED_PHASES = frozenset({NodePhase.ENDED})
