"""The events that notifications tell of: the words of `notify.when`, in the task and in config.yaml."""

from __future__ import annotations

EVENTS = {
    "job.starting": "the first machines of the job are being launched",
    "job.started": "`run` begins for the first time",
    "job.notice": "the cloud announces that it will take a machine",
    "job.preempted": "the cloud took a machine back, and the job recovers",
    "job.interrupted": "a machine or mount was lost in another way, and the job recovers",
    "job.restarting": "`run` failed or is stuck, and the job starts again as `job_recovery` says",
    "job.recovered": "`run` begins again after a recovery",
    "job.waiting": "no machine can be had now",
    "job.late": "the deadline can no longer be met",
    "job.stuck": "the job makes no progress",
    "job.budget_warning": "80 % of `max_cost` are spent",
    "cluster.preempted": "a cluster has lost its machines; `perdure start`, or `--recover`, launches others",
    "cluster.recovered": "the machines of a cluster were replaced, as `--recover` asks",
    "service.ready": "a version of a service is ready for the first time",
    "service.failed": "a service cannot start: a replica has failed before any was ready",
    "service.update_failed": "a new version of a service has failed, and the earlier one goes on",
    "service.replica_preempted": "a replica of a service has lost its machine, and is replaced",
    "service.replica_failed": "a replica of a service has failed",
    "user.budget_warning": "a user's machines have cost 80 % of the user's budget for this month",
    "user.budget_spent": "they have cost all of it: new jobs of the user are refused",
    "job.cancelling": "a user cancels the job",
    "job.succeeded": "the job has ended well",
    "job.failed": "the job has ended in any FAILED status",
    "job.cancelled": "the job has ended because a user cancelled it",
    "task.ended": "one task of the job has ended, with any status",
    "test": "`perdure notify test` was called",
}
"""Each event with what it means."""

JOB_ENDS = ("job.succeeded", "job.failed", "job.cancelled")

DEFAULT_EVENTS = (
    *("job.succeeded", "job.failed", "job.waiting", "job.late", "job.stuck", "job.budget_warning"),
    *("cluster.preempted", "service.failed", "service.update_failed"),
    *("user.budget_warning", "user.budget_spent"),
)
"""Where no `when` is given."""
