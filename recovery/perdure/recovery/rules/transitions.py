"""Every transition between states that one decision can make, with its cause. The state diagrams are drawn from it.

One decision applies several rules, so a task may pass through a state without stopping there: a lost attempt that is
replaced at once shows as RUNNING → PROVISIONING. Tests compare these tables with what `step` does on random walks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState

Transitions = Mapping[tuple[StrEnum, StrEnum], str]

STATUS_TRANSITIONS: Transitions = {
    (Status.PENDING, Status.STARTING): "an offer is chosen",
    (Status.PENDING, Status.FAILED_PRECHECKS): "its storage cannot be prepared, or every cloud rejects the request",
    (Status.PENDING, Status.FAILED_NO_RESOURCE): "no offer fits",
    (Status.PENDING, Status.FAILED): "its machines have cost max_cost, and it never ran",
    (Status.PENDING, Status.CANCELLING): "cancelled while a node drains",
    (Status.PENDING, Status.CANCELLED): "cancelled, or an earlier task failed",
    (Status.STARTING, Status.RUNNING): "every node is set up",
    (Status.STARTING, Status.PENDING): "no offer is left for now",
    (Status.STARTING, Status.FAILED_SETUP): "setup failed",
    (Status.STARTING, Status.FAILED_PRECHECKS): "a mount fails, or every cloud rejects the request",
    (Status.STARTING, Status.FAILED_NO_RESOURCE): "the attempt is lost, and no offer fits any more",
    (Status.STARTING, Status.CANCELLED): "cancelled",
    (Status.STARTING, Status.CANCELLING): "cancelled during setup",
    (Status.RUNNING, Status.SUCCEEDED): "exit code 0",
    (Status.RUNNING, Status.FAILED): "exit code not 0, no restart left",
    (Status.RUNNING, Status.FAILED_SETUP): "setup fails on one of several nodes, in a recovery",
    (Status.RUNNING, Status.FAILED_PRECHECKS): "a mount fails on one of several nodes, in a recovery",
    (Status.RUNNING, Status.RECOVERING): "a machine is lost, or a restart",
    (Status.RUNNING, Status.CANCELLING): "cancelled",
    (Status.RECOVERING, Status.RUNNING): "every node is set up",
    (Status.RECOVERING, Status.SUCCEEDED): "the lost attempt had finished",
    (Status.RECOVERING, Status.FAILED): "the lost attempt had failed, no restart left",
    (Status.RECOVERING, Status.FAILED_SETUP): "setup failed",
    (Status.STARTING, Status.FAILED): "the workload failed at once, no restart left",
    (Status.RECOVERING, Status.FAILED_PRECHECKS): "its storage cannot be prepared, or a mount fails",
    (Status.RECOVERING, Status.CANCELLED): "cancelled",
    (Status.RECOVERING, Status.CANCELLING): "cancelled while a node drains",
    (Status.CANCELLING, Status.CANCELLED): "the workload has stopped",
}

TASK_TRANSITIONS: Transitions = {
    (TaskState.WAITING, TaskState.PROVISIONING): "an offer is chosen",
    (TaskState.WAITING, TaskState.STOPPING): "cancelled, or no offer fits, while a node drains",
    (TaskState.WAITING, TaskState.ENDED): "cancelled, no offer fits, storage failed, or an earlier task failed",
    (TaskState.PROVISIONING, TaskState.RUNNING): "every node is set up",
    (TaskState.PROVISIONING, TaskState.WAITING): "no offer is left for now",
    (TaskState.PROVISIONING, TaskState.STOPPING): "cancelled during setup, or setup fails on one of several nodes",
    (TaskState.PROVISIONING, TaskState.ENDED): "cancelled, or setup failed",
    (TaskState.RUNNING, TaskState.PROVISIONING): "the attempt is lost, another is launched",
    (TaskState.RUNNING, TaskState.WAITING): "the attempt is lost, no offer is left for now",
    (TaskState.RUNNING, TaskState.STOPPING): "cancelled",
    (TaskState.RUNNING, TaskState.ENDED): "the workload has ended",
    (TaskState.STOPPING, TaskState.ENDED): "the workload has stopped",
}

ATTEMPT_TRANSITIONS: Transitions = {
    (AttemptState.REQUESTED, AttemptState.BOOTING): "the cloud launched the machines",
    (AttemptState.REQUESTED, AttemptState.SETTING_UP): "every agent connected first",
    (AttemptState.REQUESTED, AttemptState.READY): "set up before that was recorded; an older attempt drains",
    (AttemptState.REQUESTED, AttemptState.RUNNING): "set up before that was recorded",
    (AttemptState.REQUESTED, AttemptState.STOPPED): "refused, or not wanted any more",
    (AttemptState.BOOTING, AttemptState.SETTING_UP): "every agent has connected",
    (AttemptState.BOOTING, AttemptState.READY): "set up before that was recorded; an older attempt drains",
    (AttemptState.BOOTING, AttemptState.RUNNING): "set up before that was recorded",
    (AttemptState.BOOTING, AttemptState.STOPPED): "timeout, loss, or not wanted any more",
    (AttemptState.SETTING_UP, AttemptState.READY): "set up, an older attempt still drains",
    (AttemptState.SETTING_UP, AttemptState.RUNNING): "set up",
    (AttemptState.SETTING_UP, AttemptState.DRAINING): "notice or cancel",
    (AttemptState.SETTING_UP, AttemptState.STOPPED): "setup failed, or loss",
    (AttemptState.READY, AttemptState.RUNNING): "the older attempt has stopped",
    (AttemptState.READY, AttemptState.STOPPED): "not wanted any more, or loss",
    (AttemptState.READY, AttemptState.DRAINING): "notice or cancel",
    (AttemptState.RUNNING, AttemptState.DRAINING): "notice, cancel, or a better offer",
    (AttemptState.RUNNING, AttemptState.STOPPED): "the workload ended, or loss",
    (AttemptState.DRAINING, AttemptState.STOPPED): "drained, or the deadline passed",
    (AttemptState.STOPPED, AttemptState.GONE): "the cloud confirms that the machines are gone",
}

# What an agent reports, in this order; it may skip phases while its connection is down.
NODE_PHASES = (
    NodePhase.NOT_CONNECTED,
    NodePhase.BOOTED,
    NodePhase.MOUNTING,
    NodePhase.SETUP,
    NodePhase.READY,
    NodePhase.RUNNING,
    NodePhase.FLUSHING,
    NodePhase.ENDED,
)
