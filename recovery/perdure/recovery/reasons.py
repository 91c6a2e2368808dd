"""Why something happened. One table says what each reason means for a task.

A reason is recorded beside every state, attempt and event; it never replaces a state.
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
    # losses: the task recovers
    PREEMPTED = "PREEMPTED"
    PREEMPTION_NOTICE = "PREEMPTION_NOTICE"
    MACHINE_STOPPED = "MACHINE_STOPPED"
    MACHINE_CRASHED = "MACHINE_CRASHED"
    UNREACHABLE = "UNREACHABLE"
    BOOT_TIMEOUT = "BOOT_TIMEOUT"
    MOUNT_LOST = "MOUNT_LOST"
    # moves that the policy asked for
    MOVED = "MOVED"
    # restarts that the user asked for
    RESTART_ON_ERROR = "RESTART_ON_ERROR"
    RESTART_ON_EXIT_CODE = "RESTART_ON_EXIT_CODE"
    # refusals
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
    text: str = ""


MEANINGS: dict[Reason, Meaning] = {
    Reason.COMPLETED: Meaning(Status.SUCCEEDED, text="every node's `run` exited with 0"),
    Reason.USER_CANCELLED: Meaning(Status.CANCELLED, text="cancelled by the user"),
    Reason.EARLIER_TASK_ENDED: Meaning(Status.CANCELLED, text="an earlier task of the pipeline did not succeed"),
    Reason.RUN_FAILED: Meaning(Status.FAILED, text="`run` exited with an error"),
    Reason.SETUP_FAILED: Meaning(Status.FAILED_SETUP, text="`setup` exited with an error"),
    Reason.FLUSH_FAILED: Meaning(Status.FAILED, text="cached writes did not reach the bucket"),
    Reason.NO_OFFER_FITS: Meaning(Status.FAILED_NO_RESOURCE, text="no offer of any enabled cloud can ever fit"),
    Reason.PRECHECKS_FAILED: Meaning(Status.FAILED_PRECHECKS, text="the request can not work as written"),
    Reason.STORAGE_FAILED: Meaning(Status.FAILED_PRECHECKS, text="a bucket could not be made or read"),
    Reason.CONTROLLER_ERROR: Meaning(Status.FAILED_CONTROLLER, text="the controller met an error of its own"),
    Reason.PREEMPTED: Meaning(recovers=True, is_recovery=True, text="the cloud took the machine"),
    Reason.PREEMPTION_NOTICE: Meaning(recovers=True, is_recovery=True, text="the cloud said that it takes the machine"),
    Reason.MACHINE_STOPPED: Meaning(recovers=True, is_recovery=True, text="the machine was stopped by someone"),
    Reason.MACHINE_CRASHED: Meaning(recovers=True, is_recovery=True, text="the machine went away on its own"),
    Reason.UNREACHABLE: Meaning(recovers=True, is_recovery=True, text="the machine fell silent"),
    Reason.BOOT_TIMEOUT: Meaning(recovers=True, text="no agent called from the machine in time"),
    Reason.NO_CAPACITY: Meaning(recovers=True, text="there was no room for the machine after all"),
    Reason.MOUNT_LOST: Meaning(recovers=True, is_recovery=True, text="a bucket's mount went away under the workload"),
    Reason.MOVED: Meaning(recovers=True, text="a better place was ready to take over"),
    Reason.RESTART_ON_ERROR: Meaning(recovers=True, text="restarted, as max_restarts_on_errors allows"),
    Reason.RESTART_ON_EXIT_CODE: Meaning(recovers=True, text="restarted, as recover_on_exit_codes asks"),
}


def terminal_status(reason: Reason) -> Status | None:
    """The status that `reason` ends a task with, or None if it does not end one."""
    meaning = MEANINGS.get(reason)
    return meaning.status if meaning else None


def text(reason: Reason) -> str:
    """A short sentence for people; the reason's own name in words where the table has none."""
    meaning = MEANINGS.get(reason)
    return meaning.text if meaning and meaning.text else reason.value.replace("_", " ").lower()
