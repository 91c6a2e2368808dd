"""Builds the node spec of docs/reference/agent-protocol.md when a node requests it.

The agent runs it with `perdure.agent.workload.stage`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from perdure.controller.buckets.service import StorageService
from perdure.controller.clouds import registry
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.runtime.security.secret_refs import resolve_secrets
from perdure.controller.store.records.jobs import Attempt, Job, Task, task_ids
from perdure.recovery.job import Timeouts

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
class NodeSpecBuilder:
    """Builds node specs from the database."""

    keyring: Keyring
    storage: StorageService
    artifacts: Mapping[str, str]  # name → sha256 of the files that nodes may fetch
    timeouts: Timeouts
    power_off_after_s: float | None = None  # from config.yaml; None: the default of the node's cloud

    def build(self, conn: Connection, key: AttemptKey, rank: int) -> dict[str, Any] | None:
        """The spec of one node, or None if there is no such attempt."""
        job_id, index, generation = key
        of = {"of_job": job_id, "of_task": index, "of_generation": generation}
        row = conn.execute(_ATTEMPT, of).mappings().first()
        if row is None:
            return None
        spec: dict[str, Any] = row["spec"]
        ids = (row["task_id"],) if row["num_tasks"] == 1 else task_ids(conn, job_id)
        secrets = self.keyring.unseal(row["secrets"])
        return {
            "version": 1,
            "job_id": job_id,
            "task_index": index,
            "generation": generation,
            "rank": rank,
            "num_nodes": row["num_nodes"],
            "setup": spec["setup"],
            "run": spec["run"],
            "env": {**spec["envs"], **secrets, **_variables(dict(row), key, ids)},
            "secret_names": sorted(secrets),
            "gpus_per_node": spec["gpus_per_node"],
            "workdir": _workdir(resolve_secrets(spec["workdir"], secrets)),
            "uploads": resolve_secrets(spec["uploads"], secrets),
            "mounts": self.storage.node_mounts(resolve_secrets(spec["mounts"], secrets), cloud=row["offer"]["cloud"]),
            "artifacts": dict(self.artifacts),
            "notice": asdict(source) if (source := registry.notice_source(row["offer"]["cloud"])) else None,
            "drain_s": self.timeouts.drain_timeout_s,
            "power_off_after_s": self._power_off_after_s(row["offer"]["cloud"]),
            "hooks": spec.get("hooks", []),
        }

    def upload_digests(self, conn: Connection, key: AttemptKey) -> set[str]:
        """The digests of the uploads that a node of this attempt may fetch: those that its task names."""
        spec = conn.execute(_SPEC, {"of_job": key[0], "of_task": key[1]}).scalar_one()
        files = [spec.get("workdir"), *spec.get("uploads", ())]
        return {file["upload"] for file in files if isinstance(file, dict) and "upload" in file}

    def _power_off_after_s(self, cloud: str) -> float:
        if self.power_off_after_s is not None:
            return self.power_off_after_s
        return registry.default_power_off_after_s(cloud)


def _workdir(workdir: Any) -> dict[str, Any] | None:
    """A task's `workdir` in the form of the protocol."""
    if isinstance(workdir, dict) and "url" in workdir:
        return {"git": workdir["url"], "ref": workdir.get("ref")}
    return workdir if isinstance(workdir, dict) else None


def _variables(row: Mapping[str, Any], key: AttemptKey, ids: tuple[str, ...]) -> dict[str, str]:
    """The SKYPILOT_* variables that do not depend on the node; the node adds the others."""
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
