"""Who follows the changes of jobs: users' pages and streams, the queues of clusters, and services."""

from __future__ import annotations

from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.reconcile.slot_grants import SlotGrants
from perdure.controller.store.logs.followers import JobUpdates


def publish_job(updates: JobUpdates, queue: SlotGrants, readiness: NodeReadiness, job_id: int) -> None:
    """A job was recorded anew. From any thread."""
    updates.publish_job(job_id)
    queue.job_changed(job_id)
    readiness.on_change(job_id)
