"""What a node is told to do: the node spec of docs/agent-protocol.md, put together when the node asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from perdure.controller.concealing import reveal
from perdure.controller.keyring import AttemptKey, Keyring
from perdure.controller.storage.service import StorageService
from perdure.controller.store.jobs import Attempt, Job, Task, task_ids
from perdure.recovery.job import Limits

_NOTICE_OF = {
    "local": {"kind": "imds-v2", "endpoint": None, "poll_s": 0.1},
    "aws": {"kind": "imds-v2", "endpoint": "http://169.254.169.254", "poll_s": 1.0},
    # A call is held until something changes.
    "gcp": {"kind": "gce-metadata", "endpoint": "http://metadata.google.internal", "poll_s": 0.1},
    "azure": {"kind": "azure-scheduled-events", "endpoint": "http://169.254.169.254", "poll_s": 1.0},
}

# How long a node whose workload has ended waits for a controller to tell: it alone holds the outcome and the end of the
# log, and without them the job would run again. A machine of this computer costs nothing.
_POWER_OFF_AFTER_S = {"local": 30 * 86_400.0}
_POWER_OFF_OTHERS_S = 6 * 3600.0

_ATTEMPT = (
    select(Task.c.task_id, Task.c.num_nodes, Task.c.spec, Task.c.secrets, Attempt.c.offer)
    .add_columns(Job.c.name.label("job_name"), Job.c.user, Job.c.num_tasks, Job.c.batch_rank, Job.c.batch_size)
    .join(Job, Job.c.id == Task.c.job_id)
    .join(Attempt, (Attempt.c.job_id == Task.c.job_id) & (Attempt.c.task_index == Task.c.index))
    .where(Task.c.job_id == bindparam("of_job"), Task.c.index == bindparam("of_task"))
    .where(Attempt.c.generation == bindparam("of_generation"))
)
_SPEC = select(Task.c.spec).where(Task.c.job_id == bindparam("of_job"), Task.c.index == bindparam("of_task"))


@dataclass(frozen=True)
class NodeSpecs:
    """Writes node specs. `artifacts`: name → sha256 of what nodes may fetch.

    `power_off_after_s`: as set by the user; None: as is right for the node's cloud.
    """

    keyring: Keyring
    storage: StorageService
    artifacts: Mapping[str, str]
    limits: Limits
    power_off_after_s: float | None = None

    def spec(self, conn: Connection, key: AttemptKey, rank: int) -> dict[str, Any] | None:
        """The spec of one node, or None if there is no such attempt."""
        job_id, index, generation = key
        of = {"of_job": job_id, "of_task": index, "of_generation": generation}
        row = conn.execute(_ATTEMPT, of).mappings().first()
        if row is None:
            return None
        told: dict[str, Any] = row["spec"]
        ids = (row["task_id"],) if row["num_tasks"] == 1 else task_ids(conn, job_id)
        secrets = self.keyring.open(row["secrets"])
        return {
            "version": 1,
            "job_id": job_id,
            "task_index": index,
            "generation": generation,
            "rank": rank,
            "num_nodes": row["num_nodes"],
            "setup": told["setup"],
            "run": told["run"],
            "env": {**told["envs"], **secrets, **_variables(dict(row), key, ids)},
            "secret_names": sorted(secrets),
            "gpus_per_node": told["gpus_per_node"],
            "workdir": _workdir(reveal(told["workdir"], secrets)),
            "uploads": reveal(told["uploads"], secrets),
            "mounts": self.storage.node_mounts(reveal(told["mounts"], secrets), cloud=row["offer"]["cloud"]),
            "artifacts": dict(self.artifacts),
            "notice": _NOTICE_OF.get(row["offer"]["cloud"]),
            "drain_s": self.limits.drain_s,
            "power_off_after_s": self._power_off_after_s(row["offer"]["cloud"]),
        }

    def uploads(self, conn: Connection, key: AttemptKey) -> set[str]:
        """The digests of the uploads that the attempt's task names."""
        spec = conn.execute(_SPEC, {"of_job": key[0], "of_task": key[1]}).scalar_one()
        named = [spec.get("workdir"), *spec.get("uploads", ())]
        return {one["upload"] for one in named if isinstance(one, dict) and "upload" in one}

    def _power_off_after_s(self, cloud: str) -> float:
        if self.power_off_after_s is not None:
            return self.power_off_after_s
        return _POWER_OFF_AFTER_S.get(cloud, _POWER_OFF_OTHERS_S)


def _workdir(workdir: Any) -> dict[str, Any] | None:
    """A task's `workdir` in the words of the protocol."""
    if isinstance(workdir, dict) and "url" in workdir:
        return {"git": workdir["url"], "ref": workdir.get("ref")}
    return workdir if isinstance(workdir, dict) else None


def _variables(row: Mapping[str, Any], key: AttemptKey, ids: tuple[str, ...]) -> dict[str, str]:
    """The SKYPILOT_* variables that the controller knows; the node adds those about itself."""
    offer = row["offer"]
    cluster = {
        "cluster_name": f"{row['job_name']}-{key[0]}-{key[1]}",
        "cloud": offer["cloud"],
        "region": offer["region"],
        "zone": offer["zone"],
    }
    return {
        "SKYPILOT_TASK_ID": row["task_id"],
        "SKYPILOT_TASK_IDS": "\n".join(ids),
        "SKYPILOT_MANAGED_JOB_ID": str(key[0]),
        "SKYPILOT_JOB_RANK": str(row["batch_rank"]),
        "SKYPILOT_NUM_JOBS": str(row["batch_size"]),
        "SKYPILOT_CLUSTER_INFO": json.dumps(cluster),
        "SKYPILOT_USER": row["user"],
    }
