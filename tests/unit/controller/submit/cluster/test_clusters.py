"""Clusters as their users request them, on a controller whose reconciler does not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row

from perdure.controller.maintenance.cluster_upkeep import ClusterUpkeep
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.clusters import cluster_disks, idle_rules
from perdure.controller.store.clusters.idle_rules import IdleRule, WaitFor
from perdure.controller.store.queries import clusters as queries
from perdure.controller.store.records import clusters
from perdure.controller.submit.cluster.requests import LaunchOptions, checked_rule
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.service import Accepted, Submission
from perdure.recovery.reasons import Reason
from support.helpers.past_jobs import executed_statements
from unit.controller.submit.sky import ADA, TASK, Sky

MISSED = {"resources": {"job_recovery": {"deadline": "2020-01-01T00:00:00Z"}}}


def test_start__meets_another_start_of_the_same_cluster(sky: Sky) -> None:
    sky.launch()
    sky.stop()
    sky.meanwhile(lambda: sky.service.start(sky.name)).start(sky.name)
    assert (sky.cluster().wanted, sky.starts()) == ("UP", [1, 2])


def test_start__meets_a_launch_on_the_same_cluster(sky: Sky) -> None:
    sky.launch()
    sky.stop()
    sky.meanwhile(lambda: sky.launch(key="again")).start(sky.name)
    assert (sky.cluster().wanted, sky.starts()) == ("UP", [1, 2])


def test_start__launches_nothing_if_the_cluster_was_stopped_or_started_again_meanwhile(sky: Sky) -> None:
    sky.launch()
    sky.stop()
    sky.meanwhile(lambda: sky.service.stop(sky.name)).start(sky.name)
    assert (sky.cluster().wanted, sky.starts()) == ("STOPPED", [1])

    def stop_and_start() -> None:
        sky.service.stop(sky.name)
        sky.service.start(sky.name)

    sky.meanwhile(stop_and_start).start(sky.name)
    assert (sky.cluster().wanted, sky.starts()) == ("UP", [1, 4])


def _keep_disk(sky: Sky) -> None:
    offer = {"cloud": "local", "region": "local", "zone": "local", "instance_type": "large", "market": "on-demand"}
    offer |= {"price_per_hour": 0.0, "on_demand_price_per_hour": 0.0, "vcpus": 8, "memory_gib": 8, "accelerators": None}
    with sky.daemon.database.begin() as conn:
        cluster_disks.record(conn, sky.cluster().id, cluster_disks.KeptDisks(("i-1",), offer, 0.1), 0.0)


def _kept(sky: Sky) -> list[str]:
    with sky.daemon.database.connect() as conn:
        rows = cluster_disks.of_clusters(conn, [sky.cluster().id]).get(sky.cluster().id, [])
    return [row.instance_id for row in rows]


def test_start__that_discards_disks_does_so_once_it_is_accepted(sky: Sky) -> None:
    sky.launch()
    sky.stop()
    _keep_disk(sky)

    def reject(_: Submission) -> Accepted:
        raise RequestRejected("no cloud has such machines", status=429)

    with pytest.raises(RequestRejected, match="no cloud has such machines"):
        replace(sky.service, accept=reject).start(sky.name, discards_disks=True)
    assert (_kept(sky), sky.cluster().wanted) == (["i-1"], "STOPPED")
    sky.service.start(sky.name, discards_disks=True)
    assert (_kept(sky), sky.cluster().wanted) == ([], "UP")
    (requirement,) = sky.requirements(sky.hosts()[-1].id)
    assert "instance_type" not in requirement or requirement["instance_type"] is None


def test_start__after_a_host_that_never_ran_is_no_failure(sky: Sky) -> None:
    sky.launch()
    sky.stop()
    seen: list[str] = []

    def tick() -> None:
        sky.tick()
        seen.append(sky.cluster().wanted)

    sky.meanwhile(tick).start(sky.name)
    assert (seen, sky.starts()) == (["UP"], [1, 2])


def test_start__whose_controller_died_is_completed(sky: Sky) -> None:
    sky.launch()
    sky.end(sky.hosts()[0].id, Reason.NOT_RECOVERED, has_run=True)

    def die(_: Submission) -> Accepted:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(sky.service, accept=die).start(sky.name)
    assert sky.starts() == [1]
    sky.tick()
    assert (sky.cluster().wanted, sky.starts()) == ("UP", [1, 2])


def test_watch__cancels_a_host_of_an_earlier_start(sky: Sky) -> None:
    sky.launch()
    (host,) = sky.hosts()
    sky.change(starts=2)
    sky.tick()
    assert sky.cancelled == [host.id]


def test_watch__settles_the_other_clusters_if_one_cannot_be_settled(sky: Sky) -> None:
    sky.launch()
    other = replace(sky, name=f"{sky.name}-2")
    other.launch()
    sky.change(starts=2, secrets=b"sealed with a key that is lost")
    other.change(starts=2)
    sky.tick()
    assert (sky.starts(), other.starts()) == ([1], [1, 2])


def test_launch__on_a_running_cluster_whose_configuration_compiles_no_more(sky: Sky) -> None:
    sky.launch(config={"run": "true", "resources": {"job_recovery": {"deadline": "60h"}}})
    job = sky.exec()
    sky.change(config=MISSED)
    added = sky.launch(key="second")
    assert (added.number, sky.cluster().wanted, len(sky.hosts())) == (job.number + 1, "UP", 1)
    assert sky.cancelled == []


def test_launch__of_a_new_cluster_that_no_cloud_has_leaves_nothing(sky: Sky) -> None:
    with pytest.raises(RequestRejected):
        sky.launch(config={**TASK, **MISSED})
    assert (sky.cluster().wanted, sky.cluster().cause, sky.hosts()) == ("DOWN", "failed", [])


def test_start__of_a_cluster_whose_configuration_compiles_no_more_stops_it_again(sky: Sky) -> None:
    sky.launch()
    sky.stop()
    sky.change(config=MISSED)
    with pytest.raises(RequestRejected, match="deadline"):
        sky.service.start(sky.name)
    assert (sky.cluster().wanted, sky.cluster().cause) == ("STOPPED", "failed")


def test_launch__that_is_rejected_leaves_the_machines_that_another_request_has_launched_meanwhile(sky: Sky) -> None:
    def reject(_: Submission) -> Accepted:
        sky.service.ensure_host(sky.cluster().id)
        raise RequestRejected("there is no such channel any more")

    with pytest.raises(RequestRejected):
        replace(sky.service, accept=reject).launch(sky.name, TASK, ADA, sky.name, LaunchOptions())
    assert (sky.cluster().wanted, sky.starts(), sky.cancelled) == ("UP", [1], [])


def test_queue__is_read_in_batches(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_BATCH_SIZE", 2)
    sky.launch()
    for key in "abcd":
        sky.exec(key)

    def numbers(chosen: list[int] | None) -> list[int]:
        with sky.daemon.database.connect() as conn:
            return [job["number"] for job in queries.jobs_of(conn, sky.cluster(), 0.0, chosen)]

    assert numbers(None) == [5, 4, 3, 2, 1]
    assert numbers([1, 99, 4, 3]) == [4, 3, 1]
    assert numbers([]) == []


def test_list__takes_as_many_queries_for_two_clusters_as_for_one(sky: Sky) -> None:
    other = replace(sky, name=f"{sky.name}-2")
    sky.launch(idle=IdleRule(WaitFor.JOBS))
    other.launch()

    def described(rows: list[Row[Any]]) -> list[str]:
        waits_for: list[str] = []

        def describe() -> None:
            with sky.daemon.database.connect() as conn:
                waits_for[:] = [one["autostop_wait_for"] for one in queries.describe(conn, rows, 0.0)]

        count = len(executed_statements(sky.daemon.database, describe))
        return [*waits_for, str(count)]

    assert described([sky.cluster(), other.cluster()])[:2] == ["jobs", "jobs_and_ssh"]
    assert described([sky.cluster(), other.cluster()])[-1] == described([sky.cluster()])[-1]


def test_watch__reads_the_past_jobs_of_an_idle_cluster_once(sky: Sky, monkeypatch: pytest.MonkeyPatch) -> None:
    sky.launch()
    watch = ClusterUpkeep(sky.daemon.database, sky.service.clock, sky.service)
    now = sky.service.clock.now()
    with sky.daemon.database.connect() as conn:
        (job_id,) = clusters.unfinished_jobs(conn, sky.cluster().id)
    sky.change(active_at=0.0)
    sky.end(job_id, Reason.COMPLETED, ended_at=now - 30.0)
    assert watch._unused_s(sky.cluster()) == 30.0
    with monkeypatch.context() as patch:
        patch.delattr(clusters, "last_job_ended_at")
        assert watch._unused_s(sky.cluster()) == 30.0
    sky.end(sky.exec().job_id, Reason.COMPLETED, ended_at=now - 10.0)
    assert watch._unused_s(sky.cluster()) == 10.0


class ClockWithAction(ManualClock):
    """Does `action` when it is read for the first time."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__()
        self._actions = [action]

    def now(self) -> float:
        while self._actions:
            self._actions.pop()()
        return super().now()


def test_launch__repeated_while_the_first_request_is_handled_is_the_same_launch(sky: Sky) -> None:
    """The clock is read when both have seen that there is no such cluster."""
    results: list[Any] = []
    clock = ClockWithAction(lambda: results.append(sky.launch()))
    results.append(replace(sky, service=replace(sky.service, clock=clock)).launch())
    assert results[0] == results[1]
    assert (sky.starts(), sky.jobs()) == ([1], [1])


def test_launch__of_a_name_that_another_request_launches_is_rejected(sky: Sky) -> None:
    clock = ClockWithAction(lambda: sky.launch(key="other"))
    with pytest.raises(RequestRejected, match="is being launched by another request"):
        replace(sky, service=replace(sky.service, clock=clock)).launch()


def test_requests__repeated_after_a_stop_return_their_jobs_and_start_nothing(sky: Sky) -> None:
    first, second = sky.launch(), sky.launch(key="second")
    third = sky.exec()
    sky.stop()
    again = [sky.launch(), sky.launch(key="second"), sky.exec()]
    assert [one.number for one in again] == [first.number, second.number, third.number] == [1, 2, 3]
    assert [one.job_id for one in again] == [first.job_id, second.job_id, third.job_id]
    assert (sky.cluster().wanted, sky.starts()) == ("STOPPED", [1])
    sky.service.down(sky.name)
    assert sky.exec().job_id == third.job_id


def test_exec__meets_a_stop(sky: Sky) -> None:
    sky.launch()
    with pytest.raises(RequestRejected, match="is stopped"):
        sky.meanwhile(sky.stop).exec(sky.name, TASK, ADA, f"{sky.name}-exec", None)
    assert sky.jobs() == [1], "it does not wait in a stopped cluster"


@pytest.mark.parametrize("use", ["exec", "autostop", "recreate", "nothing"])
def test_autostop__meets_a_use_of_the_cluster(sky: Sky, use: str) -> None:
    sky.launch(with_job=False)
    seen = sky.cluster()
    sky.advance(60.0)
    if use == "exec":
        sky.exec()
    elif use == "autostop":
        sky.service.autostop(sky.name, None, IdleRule(WaitFor.JOBS), down=False)
    elif use == "recreate":
        sky.service.down(sky.name)
        sky.launch(key="again")
    sky.service.stop_cluster(seen.id, cause="autostop", seen=seen)
    assert sky.cluster().wanted == ("STOPPED" if use == "nothing" else "UP")
    sky.service.down_cluster(seen.id, cause="autostop", seen=seen)
    assert sky.cluster().wanted == ("STOPPED" if use == "nothing" else "UP"), "it was stopped since it was seen"


@pytest.mark.parametrize(
    "rule", [IdleRule(), IdleRule(WaitFor.NONE), IdleRule(below=0.05), IdleRule(WaitFor.JOBS, below=1 / 3)], ids=str
)
def test_idle_rule__is_stored_as_it_is(sky: Sky, rule: IdleRule) -> None:
    sky.launch(idle=IdleRule(WaitFor.JOBS, below=0.5))
    with sky.daemon.database.begin() as conn:
        idle_rules.store(conn, sky.cluster().id, rule)
        assert idle_rules.get(conn, sky.cluster().id) == rule
        assert idle_rules.floors(conn).get(sky.cluster().id) == rule.below


def test_idle_rule__of_an_earlier_version_is_read(sky: Sky) -> None:
    assert IdleRule.parse("jobs") == IdleRule(WaitFor.JOBS)


def test_floor__has_no_effect_where_nothing_is_waited_for(sky: Sky) -> None:
    with pytest.raises(RequestRejected, match="stops whatever its machines do"):
        checked_rule(WaitFor.NONE, 0.05)


def test_floor__stops_a_cluster_whose_job_does_nothing(sky: Sky) -> None:
    """Its machines are busy until they no longer are, whatever its jobs' statuses."""
    sky.launch(autostop_s=600.0, idle=IdleRule(below=0.05))
    (host,) = sky.hosts()
    sky.run_host(host.id)
    sky.exec()
    busy = {host.id}
    for _ in range(20):
        sky.tick(busy_jobs=lambda floors: busy & floors.keys())
        sky.advance(60.0)
    assert (sky.cluster().wanted, sky.cluster().cause) == ("UP", "")
    busy.clear()
    sky.advance(500.0)
    sky.tick()
    assert sky.cluster().wanted == "UP"
    sky.advance(100.0)
    sky.tick()
    assert (sky.cluster().wanted, sky.cluster().cause) == ("STOPPED", "autostop")


def test_new_job__counts_as_a_use_where_there_is_a_floor(sky: Sky) -> None:
    sky.launch(autostop_s=600.0, idle=IdleRule(below=0.05))
    sky.run_host(sky.hosts()[0].id)
    sky.advance(599.0)
    sky.exec()
    sky.advance(300.0)
    sky.tick()
    assert sky.cluster().wanted == "UP"
    sky.advance(301.0)
    sky.tick()
    assert sky.cluster().wanted == "STOPPED"


def test_queues__of_many_clusters_are_those_of_each(sky: Sky) -> None:
    other = replace(sky, name=f"{sky.name}-2")
    for one in (sky, other):
        one.launch()
        one.exec()
    rows, now = [sky.cluster(), other.cluster()], sky.service.clock.now()
    with sky.daemon.database.connect() as conn:
        queues = queries.queues_of(conn, rows, now)
        assert [one["jobs"] for one in queues] == [queries.jobs_of(conn, row, now) for row in rows]
        assert [one["cluster"] for one in queues] == queries.describe(conn, rows, now)
        assert [job["number"] for job in queues[0]["jobs"]] == [2, 1]
        assert queries.queues_of(conn, rows, now, skip_finished=True) == queues


def test_queues__take_as_many_queries_for_two_clusters_as_for_one(sky: Sky) -> None:
    other = replace(sky, name=f"{sky.name}-2")
    for one in (sky, other):
        one.launch(with_job=False)

    def count(rows: list[Row[Any]]) -> int:
        def read() -> None:
            with sky.daemon.database.connect() as conn:
                queries.queues_of(conn, rows, 0.0)

        return len(executed_statements(sky.daemon.database, read))

    assert count([sky.cluster(), other.cluster()]) == count([sky.cluster()])


CACHED = {**TASK, "file_mounts": {"/out": {"name": "results-of-a-cluster", "mode": "MOUNT_CACHED"}}}


@pytest.mark.parametrize(("config", "has_time"), [(TASK, False), (CACHED, True)])
@pytest.mark.parametrize("verb", ["stop", "down"])
def test_end__leaves_time_to_upload_what_cached_mounts_hold(
    sky: Sky, config: dict[str, Any], has_time: bool, verb: str
) -> None:
    graces: list[float | None] = []
    service = replace(sky.service, cancel=lambda _ids, grace_s: graces.append(grace_s))
    sky.launch(config={name: value for name, value in config.items() if name != "run"})
    getattr(service, verb)(sky.name)
    assert graces == [service.save_s if has_time else None]
