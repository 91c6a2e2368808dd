"""Builds the node spec of docs/reference/agent-protocol.md when a node requests it.

The agent runs it with `perdure.agent.workload.stage`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from perdure.controller.buckets.service import StorageService
from perdure.controller.clouds import registry
from perdure.controller.clouds.machine_options import REGISTRY_VARIABLES, is_container
from perdure.controller.clouds.machine_options import container as container_of
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.runtime.security.secret_refs import GIT_CREDENTIALS, resolve_secrets
from perdure.controller.store import grid
from perdure.controller.store.clusters import cluster_disks, cluster_homes, home_rescues
from perdure.controller.store.codec import decode_offer, decode_requirement
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.engine.rows import as_dicts
from perdure.controller.store.records import clusters
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.records.jobs import Attempt, Job, Task, task_ids
from perdure.controller.store.services import changes
from perdure.recovery.job import Timeouts
from perdure.recovery.market.offers import Market, OfferKey
from perdure.recovery.statuses import AttemptState

_ATTEMPTS = (
    select(Task.c.job_id, Task.c.index, Attempt.c.generation, Attempt.c.offer)
    .add_columns(Task.c.task_id, Task.c.num_nodes, Task.c.spec, Task.c.secrets, Task.c.requirements)
    .add_columns(Job.c.name.label("job_name"), Job.c.user, Job.c.num_tasks, Job.c.batch_rank, Job.c.batch_size)
    .add_columns(Job.c.cluster_id, Job.c.cluster_job)
    .join(Job, Job.c.id == Task.c.job_id)
    .join(Attempt, (Attempt.c.job_id == Task.c.job_id) & (Attempt.c.task_index == Task.c.index))
    .where(Task.c.job_id.in_(bindparam("job_ids", expanding=True)), Attempt.c.state != AttemptState.GONE.value)
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
    mean_uptime_s: Callable[[OfferKey], float] | None = None  # between interruptions on machines of a spot offer

    def build(self, conn: Connection, place: Place) -> dict[str, Any] | None:
        """The spec of one node, or None if its attempt does not exist or is gone. Raises an error in the task."""
        (spec,) = self.build_all(conn, [place])
        if isinstance(spec, Exception):
            raise spec
        return spec

    def build_all(self, conn: Connection, places: Sequence[Place]) -> list[dict[str, Any] | Exception | None]:
        """`build` for each of `places`; an error in one task affects no other."""
        of = {"job_ids": sorted({key[0] for key, _ in places})}
        rows = {(r["job_id"], r["index"], r["generation"]): r for r in as_dicts(conn.execute(_ATTEMPTS, of))}
        specs: list[dict[str, Any] | Exception | None] = []
        for key, rank in places:
            try:
                specs.append(self._build(conn, rows[key], key, rank) if key in rows else None)
            except UNAVAILABLE:
                raise
            except Exception as error:  # noqa: BLE001 - raised to the node that asked
                specs.append(error)
        failpoint("spec.built")
        return specs

    def _build(self, conn: Connection, row: Mapping[str, Any], key: AttemptKey, rank: int) -> dict[str, Any]:
        job_id, index, generation = key
        spec: dict[str, Any] = row["spec"]
        ids = (row["task_id"],) if row["num_tasks"] == 1 else task_ids(conn, job_id)
        secrets = self.keyring.unseal(row["secrets"])
        of_task = {name: value for name, value in secrets.items() if name != GIT_CREDENTIALS}
        container = _container(row, {**spec["envs"], **of_task})
        hidden = REGISTRY_VARIABLES if container is not None else ()  # the agent alone needs them
        return {
            "version": 1,
            "job_id": job_id,
            "task_index": index,
            "generation": generation,
            "rank": rank,
            "num_nodes": row["num_nodes"],
            "setup": spec["setup"],
            "run": spec["run"],
            "env": {
                **_without(spec["envs"], hidden),
                **_without(_combination(spec, row["batch_rank"]), hidden),
                **_without(of_task, hidden),
                **self._variables(conn, row, key, ids),
            },
            "secret_names": sorted(of_task),
            "gpus_per_node": _num_gpus(row["offer"]),
            "workdir": _workdir(resolve_secrets(spec["workdir"], secrets)),
            "uploads": resolve_secrets(spec["uploads"], secrets),
            "mounts": self.storage.node_mounts(resolve_secrets(spec["mounts"], secrets), cloud=row["offer"]["cloud"]),
            "artifacts": dict(self.artifacts),
            "notice": asdict(source) if (source := registry.notice_source(row["offer"]["cloud"])) else None,
            "drain_s": self.timeouts.drain_timeout_s,
            "power_off_after_s": self._power_off_after_s(row["offer"]["cloud"]),
            "hooks": spec.get("hooks", []),
            "runtime": spec.get("runtime"),
            "container": container,
            "host": spec.get("host", False),
            **(self._homes(conn, row, (key, rank)) if spec.get("host") else {"home": None}),
            "probe": resolve_secrets(spec["probe"], secrets) if "probe" in spec else None,
            "revision": spec.get(changes.REVISION, 0),
        }

    def _homes(self, conn: Connection, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """`home`, with `rescue` if a host must save it now although it has ended. `awaits_rescue`: it may have to."""
        rescues = home_rescues.is_asked(conn, place)
        home = self._home(conn, row, is_needed=rescues)
        keeps_disk = cluster_disks.keeps_disks(conn, row["job_id"], row["generation"])
        awaits = keeps_disk and not registry.power_off_stops(row["offer"]["cloud"])
        return {"home": home, "rescue": rescues and home is not None, "awaits_rescue": awaits}

    def _home(self, conn: Connection, row: Mapping[str, Any], *, is_needed: bool) -> dict[str, Any] | None:
        """Where a host keeps its home, in the form of a mount; None if on its disk, nowhere, or its cluster is down.

        Machines whose disks will be kept restore the home that others have saved, if some have. `is_needed`: the disk
        will not be kept.
        """
        if not is_needed and cluster_disks.launch_request(conn, row["job_id"], row["generation"]).get("resumes"):
            return None
        home, cloud = cluster_homes.wanted_of(conn, row["cluster_id"]), row["offer"]["cloud"]
        if home is None or home.store not in self.storage.stores or (home.store == "local") != (cloud == "local"):
            return None
        mount = {"path": "~", "mode": "MOUNT", "store": home.store, "bucket": home.bucket, "prefix": ""}
        (one,) = self.storage.node_mounts([{**mount, "read_only": False, "options": {}}], cloud=cloud)
        return one

    def _variables(
        self, conn: Connection, row: Mapping[str, Any], key: AttemptKey, ids: tuple[str, ...]
    ) -> dict[str, str]:
        if row["cluster_job"] is None:
            return {**_variables(row, key, ids), **self._uptime(row["offer"])}
        host = clusters.hosts(conn, [row["cluster_id"]])[row["cluster_id"]]
        offer = next((attempt.offer for attempt in reversed(host.attempts)), row["offer"])
        cluster = {"cluster_name": clusters.name_of(conn, row["cluster_id"])}
        cluster |= {name: offer[name] for name in ("cloud", "region", "zone")}
        return {
            "SKYPILOT_TASK_ID": row["task_id"],
            "SKYPILOT_CLUSTER_INFO": json.dumps(cluster),
            "SKYPILOT_INTERNAL_JOB_ID": str(row["cluster_job"]),
            "SKYPILOT_USER": row["user"],
            **self._uptime(offer),
        }

    def _uptime(self, offer: Mapping[str, Any]) -> dict[str, str]:
        """How long a machine that can be interrupted lasts on average, from which programs derive how often to save."""
        if self.mean_uptime_s is None or offer.get("market") != Market.SPOT:
            return {}
        key = OfferKey(offer["cloud"], offer["region"], offer["zone"], offer["instance_type"], Market.SPOT)
        return {"PERDURE_MEAN_UPTIME_S": f"{self.mean_uptime_s(key):.0f}"}

    def upload_digests(self, conn: Connection, key: AttemptKey) -> set[str]:
        """The digests of the uploads that a node of this attempt may fetch: those that its task names."""
        spec = conn.execute(_SPEC, {"of_job": key[0], "of_task": key[1]}).scalar_one()
        files = [spec.get("workdir"), *spec.get("uploads", ())]
        return {file["upload"] for file in files if isinstance(file, dict) and "upload" in file}

    def _power_off_after_s(self, cloud: str) -> float:
        if self.power_off_after_s is not None:
            return self.power_off_after_s
        return registry.default_power_off_after_s(cloud)


def _combination(spec: Mapping[str, Any], rank: int) -> dict[str, str]:
    """The variables of a job of a sweep with a grid."""
    return grid.combination(spec["sweep"], rank) if spec.get("sweep") else {}


def _num_gpus(offer: Mapping[str, Any]) -> int:
    """The accelerators of one machine that was bought, whichever alternative of the task it is. A fraction counts as
    one."""
    return math.ceil(offer["accelerators"][1]) if offer.get("accelerators") else 0


def _container(row: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any] | None:
    """The container that this attempt runs in, if it does. Most tasks have none, and need no decoding."""
    spec = row["spec"]
    if not any(is_container(options.get("image_id")) for options in spec.get("machines", ())):
        return None
    requirements = [decode_requirement(one) for one in row["requirements"]]
    return container_of(spec, requirements, decode_offer(row["offer"]), variables)


def _without(variables: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in names}


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
