"""Why something happened. One table says what each reason means for a task.

A reason is stored beside every state, attempt and event; it never replaces a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perdure.recovery.statuses import Status


class Reason(StrEnum):
    SUBMITTED = "SUBMITTED"
    PREVIOUS_TASK_DONE = "PREVIOUS_TASK_DONE"
    # ends
    COMPLETED = "COMPLETED"
    USER_CANCELLED = "USER_CANCELLED"
    EARLIER_TASK_ENDED = "EARLIER_TASK_ENDED"
    RUN_FAILED = "RUN_FAILED"
    SETUP_FAILED = "SETUP_FAILED"
    FLUSH_FAILED = "FLUSH_FAILED"
    NO_OFFER_FITS = "NO_OFFER_FITS"
    PRECHECKS_FAILED = "PRECHECKS_FAILED"
    STORAGE_FAILED = "STORAGE_FAILED"
    CONTROLLER_ERROR = "CONTROLLER_ERROR"
    NOT_RECOVERED = "NOT_RECOVERED"
    MAX_DURATION = "MAX_DURATION"
    MAX_COST = "MAX_COST"
    # losses: the task recovers
    PREEMPTED = "PREEMPTED"
    PREEMPTION_NOTICE = "PREEMPTION_NOTICE"
    MACHINE_STOPPED = "MACHINE_STOPPED"
    MACHINE_CRASHED = "MACHINE_CRASHED"
    UNREACHABLE = "UNREACHABLE"
    BOOT_TIMEOUT = "BOOT_TIMEOUT"
    MOUNT_LOST = "MOUNT_LOST"
    # moves that the policy decided on
    MOVED = "MOVED"
    # restarts that the user configured
    RESTART_ON_ERROR = "RESTART_ON_ERROR"
    RESTART_ON_EXIT_CODE = "RESTART_ON_EXIT_CODE"
    STUCK = "STUCK"
    # failed launches
    NO_CAPACITY = "NO_CAPACITY"
    QUOTA = "QUOTA"
    THROTTLED = "THROTTLED"
    PRICE = "PRICE"
    BAD_CREDENTIALS = "BAD_CREDENTIALS"
    BAD_REQUEST = "BAD_REQUEST"
    # waiting
    BACKING_OFF = "BACKING_OFF"


@dataclass(frozen=True)
class Meaning:
    """What a reason means for its task."""

    status: Status | None = None  # the terminal status it gives, if it ends a task
    recovers: bool = False  # the task goes on with another attempt
    is_recovery: bool = False  # that attempt counts in `recovery_count`
    text: str = ""  # shown to users


MEANINGS: dict[Reason, Meaning] = {
    Reason.COMPLETED: Meaning(Status.SUCCEEDED, text="`run` exited with code 0 on every node"),
    Reason.USER_CANCELLED: Meaning(Status.CANCELLED, text="the user cancelled the job"),
    Reason.EARLIER_TASK_ENDED: Meaning(Status.CANCELLED, text="an earlier task of the pipeline did not succeed"),
    Reason.RUN_FAILED: Meaning(Status.FAILED, text="`run` exited with an error"),
    Reason.SETUP_FAILED: Meaning(Status.FAILED_SETUP, text="`setup` exited with an error"),
    Reason.FLUSH_FAILED: Meaning(Status.FAILED, text="cached writes could not be uploaded to the bucket"),
    Reason.NO_OFFER_FITS: Meaning(Status.FAILED_NO_RESOURCE, text="no enabled cloud offers a machine that fits"),
    Reason.PRECHECKS_FAILED: Meaning(Status.FAILED_PRECHECKS, text="the cloud rejects the request as it is written"),
    Reason.STORAGE_FAILED: Meaning(Status.FAILED_PRECHECKS, text="a bucket could not be created or read"),
    Reason.NOT_RECOVERED: Meaning(Status.FAILED, text="a machine was lost, and recovery is off"),
    Reason.CONTROLLER_ERROR: Meaning(Status.FAILED_CONTROLLER, text="the controller had an internal error"),
    Reason.MAX_DURATION: Meaning(Status.FAILED, text="it has run for as long as max_duration allows"),
    Reason.MAX_COST: Meaning(Status.FAILED, text="it has cost as much as max_cost allows"),
    Reason.PREEMPTED: Meaning(recovers=True, is_recovery=True, text="the cloud took the machine back (preemption)"),
    Reason.PREEMPTION_NOTICE: Meaning(
        recovers=True, is_recovery=True, text="the cloud announced that it will take the machine back"
    ),
    Reason.MACHINE_STOPPED: Meaning(recovers=True, is_recovery=True, text="somebody stopped the machine"),
    Reason.MACHINE_CRASHED: Meaning(recovers=True, is_recovery=True, text="the machine failed, without a preemption"),
    Reason.UNREACHABLE: Meaning(recovers=True, is_recovery=True, text="the machine stopped responding"),
    Reason.BOOT_TIMEOUT: Meaning(recovers=True, text="the agent on the machine did not connect in time"),
    Reason.NO_CAPACITY: Meaning(recovers=True, text="the cloud accepted the launch but had no capacity for it"),
    Reason.MOUNT_LOST: Meaning(recovers=True, is_recovery=True, text="a bucket's mount failed while the workload ran"),
    Reason.MOVED: Meaning(recovers=True, text="a replacement on a better offer was ready to take over"),
    Reason.RESTART_ON_ERROR: Meaning(recovers=True, text="restarted, as max_restarts_on_errors allows"),
    Reason.STUCK: Meaning(recovers=True, text="restarted, because it made no progress"),
    Reason.RESTART_ON_EXIT_CODE: Meaning(recovers=True, text="restarted, because recover_on_exit_codes lists the code"),
}


# The cloud took the machine, or has announced it.
PREEMPTIONS = frozenset({Reason.PREEMPTED, Reason.PREEMPTION_NOTICE})

# A reason that is not in the table ends nothing and recovers nothing.
_NO_MEANING = Meaning()

# A stage of a node's agent, and the reason if it fails.
STAGE_FAILURES: dict[str, Reason] = {
    "start": Reason.PRECHECKS_FAILED,  # of the agent itself, as the cloud reports it
    "mounts": Reason.STORAGE_FAILED,
    "setup": Reason.SETUP_FAILED,
    "run": Reason.RUN_FAILED,
    "flush": Reason.FLUSH_FAILED,
}


def meaning_of(reason: Reason) -> Meaning:
    """What `reason` means for its task. Total: a reason that is not in the table changes nothing."""
    return MEANINGS.get(reason, _NO_MEANING)


def terminal_status(reason: Reason) -> Status | None:
    """The status that `reason` ends a task with, or None if it does not end one."""
    return meaning_of(reason).status


def describe(reason: Reason) -> str:
    """A phrase for users; for a reason without one in the table, its name in lower case."""
    return meaning_of(reason).text or reason.value.replace("_", " ").lower()
