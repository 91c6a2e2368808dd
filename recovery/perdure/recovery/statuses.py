"""The states that the controller stores, and the statuses that users see.

A state says *what is going on*; a `Reason` beside it says why. A status is derived from both and has SkyPilot's name.

Modules that run at every decision bind members to names of their own, such as `_WAITING`: looking a member up on its
enum class costs as much as a function call (Python 3.11).
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What `perdure jobs queue` shows. The names are SkyPilot's `ManagedJobStatus`."""

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
    """What is going on with a task."""

    WAITING = "WAITING"  # no attempt: an earlier task runs, or the time of the next try (`wake_at`) has not come
    PROVISIONING = "PROVISIONING"  # the newest attempt is being launched, booted and set up
    RUNNING = "RUNNING"  # an attempt's workload runs
    STOPPING = "STOPPING"  # the outcome is known; the workload is being stopped
    ENDED = "ENDED"


class AttemptState(StrEnum):
    """What is going on with one attempt, in the order of its life."""

    REQUESTED = "REQUESTED"  # the launch intent is open: machines may or may not exist
    BOOTING = "BOOTING"  # machines exist; not every agent has connected yet
    SETTING_UP = "SETTING_UP"  # every agent has connected: mounts and `setup`
    READY = "READY"  # every rank is set up and waits for permission to run
    RUNNING = "RUNNING"  # permission to run was given
    DRAINING = "DRAINING"  # asked to stop: the workload saves, mounts are flushed
    STOPPED = "STOPPED"  # no workload runs any more; machines may still exist
    GONE = "GONE"  # the cloud confirms that every machine is gone


class NodePhase(StrEnum):
    """What a node's agent last reported. The values are the agent protocol's, except NOT_CONNECTED."""

    NOT_CONNECTED = "not_connected"  # the agent has never connected
    BOOTED = "booted"  # the agent has connected and waits for the addresses of its peers
    MOUNTING = "mounting"
    SETUP = "setup"
    READY = "ready"
    RUNNING = "running"
    FLUSHING = "flushing"  # the workload has ended; cached writes are being uploaded to the bucket
    ENDED = "ended"  # nothing of the workload runs, nothing more will be written


ENDED_PHASES = frozenset({NodePhase.ENDED})
