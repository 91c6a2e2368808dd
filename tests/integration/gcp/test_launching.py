"""Launches over HTTP: what Google is asked for, and what becomes of it when the world is not kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fake_gce import FakeGce
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.fresh import FRESH_S
from perdure.controller.clouds.gcp import cloud as gcp_cloud
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason

Requests = Callable[..., LaunchRequest]


def as_google_tells(gce: FakeGce, machine: Instance) -> dict[str, Any]:
    zone, _, name = machine.id.partition("/")
    (told,) = gce.ask("GET", f"zones/{zone}/instances", filter=f'name = "{name}"')["items"]
    return dict(told)


def refused(cloud: GcpCloud, request: LaunchRequest) -> Any:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's, or ours
        cloud.launch(request)
    return cloud.classify(caught.value)


def test_a_machine_is_what_was_asked_for(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    request = request_of(disk_gib=300, labels={"team": "vision", "perdure-job": "mine", "Who": "Me & you"})
    (machine,) = cloud.launch(request)
    told = as_google_tells(gce, machine)
    assert told["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
    }
    assert told["machineType"].endswith("/us-central1-a/machineTypes/n2-standard-2")
    assert told["labels"]["team"] == "vision"
    assert told["labels"]["perdure-job"] == "7", "nobody's label takes the place of ours"
    items = {item["key"]: item["value"] for item in told["metadata"]["items"]}
    assert json.loads(items["perdure-labels"]) == request.labels, "those too that can be no labels"
    assert "attempt-token" in items["startup-script"]
    assert not told["serviceAccounts"], "a machine needs no rights of its own"
    assert [one["name"] for one in told["networkInterfaces"][0]["accessConfigs"]] == ["External NAT"]


def test_on_demand_is_no_spot_and_what_has_no_gpu_is_moved(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    (plain,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    assert as_google_tells(gce, plain)["scheduling"] == {
        "provisioningModel": "STANDARD",
        "automaticRestart": False,
        "onHostMaintenance": "MIGRATE",
    }
    (gpus,) = cloud.launch(request_of("t2", market=Market.ON_DEMAND, kind="g2-standard-4"))
    assert as_google_tells(gce, gpus)["scheduling"]["onHostMaintenance"] == "TERMINATE"


def test_the_best_network_is_googles_own_interface_and_more_bandwidth_where_it_is_sold(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    big = request_of(kind="n2-standard-32", network_tier="best")
    big = replace(big, offer=replace(big.offer, vcpus=32))
    small = request_of("t2", network_tier="best")
    told = [as_google_tells(gce, *cloud.launch(one)) for one in (big, small, request_of("t3"))]
    assert [one["networkInterfaces"][0].get("nicType") for one in told] == ["GVNIC", "GVNIC", None]
    tiers = [one.get("networkPerformanceConfig", {}).get("totalEgressBandwidthTier") for one in told]
    assert tiers == ["TIER_1", None, None]


def test_gpus_are_attached_where_they_are_no_part_of_the_machine(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    (machine,) = cloud.launch(request_of(kind="n1-highmem-16+v100x2"))
    told = as_google_tells(gce, machine)
    assert told["machineType"].endswith("/n1-highmem-16")
    (gpus,) = told["guestAccelerators"]
    assert gpus["acceleratorType"].endswith("/nvidia-tesla-v100")
    assert gpus["acceleratorCount"] == 2
    assert machine.instance_type == "n1-highmem-16+v100x2"


def test_what_the_configuration_says_of_machines(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Requests
) -> None:
    cloud = new_cloud(
        network="training",
        subnets={"us-central1": "a"},
        external_ip=False,
        service_account="node@p.iam.gserviceaccount.com",
        preemption_notice=True,
        image="projects/perdure-test/global/images/mine",
    )
    (machine,) = cloud.launch(request_of())
    told = as_google_tells(gce, machine)
    (interface,) = told["networkInterfaces"]
    assert interface["network"] == "global/networks/training"
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/a"
    assert "accessConfigs" not in interface
    assert [one["email"] for one in told["serviceAccounts"]] == ["node@p.iam.gserviceaccount.com"]
    assert told["scheduling"]["preemptionNoticeDuration"]["seconds"] == "120"


def test_nodes_come_in_one_call_and_their_ranks_are_in_their_names(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    machines = cloud.launch(request_of(num_nodes=12))
    assert gce.calls["instances.bulkInsert"] == 1
    assert sorted(one.rank for one in machines) == list(range(12))
    assert {one.id: one.index for one in gce.bought()} == {one.id: one.rank for one in machines}


def test_an_answer_that_is_lost_buys_nothing_twice(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.lost_answers["instances.bulkInsert"] = 1
    assert refused(cloud, request_of()).kind is FaultKind.FIND_OUT
    (bought,) = gce.bought()
    assert [one.id for one in cloud.launch(request_of())] == [bought.id]
    assert len(gce.bought()) == 1


def test_a_request_that_is_lost_buys_nothing(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.lost_requests["instances.bulkInsert"] = 1
    assert refused(cloud, request_of()).kind is FaultKind.FIND_OUT
    assert not gce.bought()
    assert len(cloud.launch(request_of())) == 1


def test_no_call_is_made_twice_by_itself(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.throttle = 1
    fault = refused(cloud, request_of())
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert gce.calls["instances.bulkInsert"] == 1
    gce.faults.deny = "forbidden"
    assert refused(cloud, request_of()).reason is Reason.BAD_CREDENTIALS
    assert gce.calls["instances.bulkInsert"] == 2


@pytest.mark.parametrize("loses_patience", ["the service", "the controller"])
def test_a_launch_that_takes_long_is_waited_for_and_asked_for_again(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests, monkeypatch: pytest.MonkeyPatch, loses_patience: str
) -> None:
    gce.faults.operation_s = 0.5
    with monkeypatch.context() as patch:
        if loses_patience == "the service":
            gce.faults.wait_s = 0.0
        else:
            patch.setattr(gcp_cloud, "WAIT_S", 0.05)
        fault = refused(cloud, request_of())
    assert (fault.kind, fault.code) == (FaultKind.FIND_OUT, "OPERATION_PENDING")
    gce.faults.wait_s = 120.0
    (machine,) = cloud.launch(request_of())
    assert machine.state is InstanceState.RUNNING
    assert [one.id for one in gce.bought()] == [machine.id]


def test_a_request_that_google_has_forgotten_finds_its_machines(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    first = cloud.launch(request_of(num_nodes=2))
    gce.forget_requests()
    assert {one.id for one in cloud.launch(request_of(num_nodes=2))} == {one.id for one in first}
    assert len(gce.bought()) == 2


@pytest.mark.parametrize("hides_cause", [False, True])
def test_the_cause_of_a_refusal_is_found_where_it_is_told(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests, hides_cause: bool
) -> None:
    gce.faults.hides_cause = hides_cause
    gce.faults.refuse["us-central1-a", Market.SPOT] = "QUOTA_EXCEEDED"
    fault = refused(cloud, request_of(num_nodes=2))
    assert (fault.kind, fault.reason, fault.code) == (FaultKind.AVOID_REGION, Reason.QUOTA, "QUOTA_EXCEEDED")
    assert cloud.launch(request_of("t2", market=Market.ON_DEMAND)), "its quota is another"


def test_what_a_failed_launch_leaves_is_given_back(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.leaves_some = True
    gce.faults.capacity["us-central1-a"] = 2
    assert refused(cloud, request_of(num_nodes=3)).kind is FaultKind.AVOID_ZONE
    assert len(gce.bought()) == 2
    assert not gce.living()
    gce.faults.capacity["us-central1-a"] = 3
    again = cloud.launch(request_of(num_nodes=3))
    assert sorted(one.rank for one in again) == [0, 1, 2]
    assert {one.id for one in gce.living()} == {one.id for one in again}


def test_what_was_just_bought_is_not_dead_because_it_is_not_seen_yet(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests, clock: ManualClock
) -> None:
    gce.faults.listing_delay_s = 3600
    (machine,) = cloud.launch(request_of())
    assert (machine.state, machine.rank) == (InstanceState.PENDING, 0)
    assert not cloud.list_owned("ctl")
    (seen,) = cloud.describe("us-central1", [machine.id])
    assert (seen.id, seen.state) == (machine.id, machine.state)
    assert not cloud.describe("us-east4", [machine.id])
    clock.advance(FRESH_S)
    assert not cloud.describe("us-central1", [machine.id])


def test_more_machines_than_go_into_one_page_or_call(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.page_size = 20
    machines = [*cloud.launch(request_of(num_nodes=51)), *cloud.launch(request_of("t2", zone="us-east4-a"))]
    assert len(cloud.list_owned("ctl")) == 52
    here = [one.id for one in machines if one.region == "us-central1"]
    assert len(cloud.describe("us-central1", here)) == 51
    cloud.terminate("us-central1", [*here, "us-central1-a/perdure-none-0"])
    assert len(gce.living()) == 1
    assert {one.state for one in cloud.describe("us-central1", here[:3])} == {InstanceState.GONE}


def test_a_zone_that_does_not_tell_makes_no_list(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    cloud.launch(request_of())
    gce.faults.unreachable = frozenset({"us-east4-a"})
    with pytest.raises(Exception, match="us-east4-a does not tell") as caught:
        cloud.list_owned("ctl")
    assert cloud.classify(caught.value).kind is FaultKind.RETRY_LATER


def test_a_preemption_is_told_with_its_reason_and_its_second(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Requests
) -> None:
    gce.faults.soft_off_s = 0.0
    cloud = new_cloud()
    (machine,) = cloud.launch(request_of())
    gce.interrupt(machine.id)
    (bought,) = gce.bought()
    for anybody in (cloud, new_cloud()):  # one that has just started, too: it learns it from Google
        (gone,) = anybody.describe("us-central1", [machine.id])
        assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)
        assert gone.ended_at == bought.ended_at
    (gone,) = cloud.describe("us-central1", [machine.id])
    assert (gone.owner, gone.launched_at) == (machine.owner, bought.launched_at)


def test_an_end_that_somebody_else_made_is_no_preemption(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of())
    gce.ask("DELETE", f"zones/us-central1-a/instances/{machine.id.partition('/')[2]}")
    (gone,) = cloud.describe("us-central1", [machine.id])
    assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.MACHINE_STOPPED)


def test_while_it_is_being_taken_it_may_still_work(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of())
    cloud.interrupt("us-central1", machine.id, notice_s=None)
    (seen,) = cloud.describe("us-central1", [machine.id])
    assert (seen.state, seen.gone_reason, seen.ended_at) == (InstanceState.ENDING, Reason.PREEMPTED, None)
    assert [one.id for one in cloud.list_owned("ctl")] == [machine.id]


def test_what_is_no_spot_machine_is_not_taken(cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    with pytest.raises(Exception, match="no spot machine") as caught:
        cloud.interrupt("us-central1", machine.id, notice_s=None)
    assert cloud.classify(caught.value).kind is FaultKind.GIVE_UP


def test_an_image_that_is_none_buys_nothing(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    for image in ("skypilot:gpu-ubuntu-2204", "projects/perdure-test/global/images/gone"):
        fault = refused(cloud, request_of(image_id=image))
        assert fault.kind is FaultKind.GIVE_UP
        assert image in fault.message
    assert not gce.bought()


def test_without_a_network_it_says_what_to_do(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Requests
) -> None:
    fault = refused(new_cloud(network="gone"), request_of())
    assert (fault.kind, fault.reason) == (FaultKind.GIVE_UP, Reason.BAD_REQUEST)
    assert "networks/gone" in fault.message


def test_an_owner_that_fits_no_label_comes_back_whole(cloud: GcpCloud, request_of: Requests) -> None:
    odd = Owner("Ctl.1", job_id=7, task=0, generation=1, token="Tok/1")
    (machine,) = cloud.launch(request_of(owner=odd))
    assert machine.owner == odd
    assert [one.owner for one in cloud.list_owned("Ctl.1")] == [odd]
