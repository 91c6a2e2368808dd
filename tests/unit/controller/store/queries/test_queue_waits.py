"""Why the jobs in the queue of a cluster wait."""

from __future__ import annotations

import pytest

from perdure.controller.store.queries.queue_waits import _of_queue
from perdure.recovery.market.slot_queue import Demand, NodeRoom, QueuedJob, RunningJob

NODES = {0: NodeRoom(8.0, 32.0, (1.0,) * 8), 1: NodeRoom(8.0, 32.0, (1.0,) * 8)}
RUNS = RunningJob(Demand(6.0, 0.0, 6.0), {0: dict.fromkeys(range(6), 1.0), 1: dict.fromkeys(range(6), 1.0)})


def texts(*demands: QueuedJob) -> list[str]:
    numbers = {job.id: job.id - 100 for job in demands}
    waits = _of_queue(demands, NODES, [RUNS], "dev", numbers, [1])
    return [waits[job.id] for job in demands]


def job(number: int, *, cpus: float = 0.5, gpus: float = 0.0, nodes: int = 1) -> QueuedJob:
    return QueuedJob(100 + number, Demand(cpus, 0.0, gpus), nodes)


def test_head__names_the_jobs_in_its_way_and_others_name_the_head() -> None:
    assert texts(job(2, gpus=8.0, nodes=2), job(3, gpus=4.0), job(4)) == [
        "it is the next one on dev, and job 1 must leave room for 0.5 CPUs and 8 GPUs on each of 2 nodes",
        "it is queued behind job 2, which dev has no room for yet",
        "it is queued behind job 2, which dev has no room for yet",
    ]


def test_job__that_fits_starts() -> None:
    assert texts(job(2)) == ["dev has room for it, and it starts now"]


@pytest.mark.parametrize("large", [job(2, cpus=9.0), job(2, nodes=3)], ids=["cpus", "nodes"])
def test_job__that_can_never_fit_holds_up_no_other(large: QueuedJob) -> None:
    first, second = texts(large, job(3, cpus=8.0))
    assert "do not have even when nothing runs" in first
    assert second == "it is the next one on dev, and job 1 must leave room for 8 CPUs"
