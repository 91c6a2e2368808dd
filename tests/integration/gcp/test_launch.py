"""Launches over HTTP: the requests to Compute Engine, and its failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import Fault, Instance, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.base.recent_launches import RECENT_S
from perdure.controller.clouds.gcp import cloud as gcp_cloud
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.gce import FakeGce

pytestmark = pytest.mark.long

Requests = Callable[..., LaunchRequest]


def as_google_tells(gce: FakeGce, machine: Instance) -> dict[str, Any]:
    zone, _, name = machine.id.partition("/")
    (reported,) = gce.ask("GET", f"zones/{zone}/instances", filter=f'name = "{name}"')["items"]
    return dict(reported)


def refused(cloud: GcpCloud, request: LaunchRequest) -> Fault:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's, or ours
        cloud.launch(request)
    return cloud.classify(caught.value)


def test_launch__requests_the_machine_of_the_offer(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    request = request_of(disk_gib=300, labels={"team": "vision", "perdure-job": "mine", "Who": "Me & you"})
    (machine,) = cloud.launch(request)
    reported = as_google_tells(gce, machine)
    assert reported["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
    }
    assert reported["machineType"].endswith("/us-central1-a/machineTypes/n2-standard-2")
    assert reported["labels"]["team"] == "vision"
    assert reported["labels"]["perdure-job"] == "7", "a user's label does not replace ours"
    items = {item["key"]: item["value"] for item in reported["metadata"]["items"]}
    assert json.loads(items["perdure-labels"]) == request.labels, "those too that can be no labels"
    assert "attempt-token" in items["startup-script"]
    assert not reported["serviceAccounts"], "a machine needs no rights of its own"
    assert [one["name"] for one in reported["networkInterfaces"][0]["accessConfigs"]] == ["External NAT"]


def test_launch__on_demand_is_not_spot_and_migrates_without_gpus(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    (plain,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    assert as_google_tells(gce, plain)["scheduling"] == {
        "provisioningModel": "STANDARD",
        "automaticRestart": False,
        "onHostMaintenance": "MIGRATE",
    }
    (gpus,) = cloud.launch(request_of("t2", market=Market.ON_DEMAND, kind="g2-standard-4"))
    assert as_google_tells(gce, gpus)["scheduling"]["onHostMaintenance"] == "TERMINATE"


def test_launch__with_the_best_network_uses_gvnic_and_more_bandwidth(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    big = request_of(kind="n2-standard-32", network_tier="best")
    big = replace(big, offer=replace(big.offer, vcpus=32))
    small = request_of("t2", network_tier="best")
    reported = [as_google_tells(gce, *cloud.launch(one)) for one in (big, small, request_of("t3"))]
    assert [one["networkInterfaces"][0].get("nicType") for one in reported] == ["GVNIC", "GVNIC", None]
    tiers = [one.get("networkPerformanceConfig", {}).get("totalEgressBandwidthTier") for one in reported]
    assert tiers == ["TIER_1", None, None]


def test_launch__attaches_gpus_to_n1_machines(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of(kind="n1-highmem-16+v100x2"))
    reported = as_google_tells(gce, machine)
    assert reported["machineType"].endswith("/n1-highmem-16")
    (gpus,) = reported["guestAccelerators"]
    assert gpus["acceleratorType"].endswith("/nvidia-tesla-v100")
    assert gpus["acceleratorCount"] == 2
    assert machine.instance_type == "n1-highmem-16+v100x2"


def test_launch__uses_the_configured_properties(
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
    reported = as_google_tells(gce, machine)
    (interface,) = reported["networkInterfaces"]
    assert interface["network"] == "global/networks/training"
    assert interface["subnetwork"] == "regions/us-central1/subnetworks/a"
    assert "accessConfigs" not in interface
    assert [one["email"] for one in reported["serviceAccounts"]] == ["node@p.iam.gserviceaccount.com"]
    assert reported["scheduling"]["preemptionNoticeDuration"]["seconds"] == "120"


def test_launch__requests_all_nodes_in_one_call_with_ranks_in_names(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    machines = cloud.launch(request_of(num_nodes=12))
    assert gce.calls["instances.bulkInsert"] == 1
    assert sorted(one.rank for one in machines) == list(range(12))
    assert {one.id: one.index for one in gce.purchases()} == {one.id: one.rank for one in machines}


def test_launch__is_idempotent_after_a_lost_response(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.lost_answers["instances.bulkInsert"] = 1
    assert refused(cloud, request_of()).kind is FaultKind.AMBIGUOUS
    (purchases,) = gce.purchases()
    assert [one.id for one in cloud.launch(request_of())] == [purchases.id]
    assert len(gce.purchases()) == 1


def test_launch__launches_nothing_after_a_lost_request(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.lost_requests["instances.bulkInsert"] = 1
    assert refused(cloud, request_of()).kind is FaultKind.AMBIGUOUS
    assert not gce.purchases()
    assert len(cloud.launch(request_of())) == 1


def test_launch__does_not_retry(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.throttle = 1
    fault = refused(cloud, request_of())
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert gce.calls["instances.bulkInsert"] == 1
    gce.faults.deny = "forbidden"
    assert refused(cloud, request_of()).reason is Reason.BAD_CREDENTIALS
    assert gce.calls["instances.bulkInsert"] == 2


@pytest.mark.parametrize("gives_up", ["the service", "the controller"])
def test_launch__repeats_an_operation_that_takes_long(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests, monkeypatch: pytest.MonkeyPatch, gives_up: str
) -> None:
    gce.faults.operation_s = 0.5
    with monkeypatch.context() as patch:
        if gives_up == "the service":
            gce.faults.wait_s = 0.0
        else:
            patch.setattr(gcp_cloud, "WAIT_S", 0.05)
        fault = refused(cloud, request_of())
    assert (fault.kind, fault.code) == (FaultKind.AMBIGUOUS, "OPERATION_PENDING")
    gce.faults.wait_s = 120.0
    (machine,) = cloud.launch(request_of())
    assert machine.state is InstanceState.RUNNING
    assert [one.id for one in gce.purchases()] == [machine.id]


def test_launch__finds_machines_of_a_forgotten_request(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    first = cloud.launch(request_of(num_nodes=2))
    gce.forget_requests()
    assert {one.id for one in cloud.launch(request_of(num_nodes=2))} == {one.id for one in first}
    assert len(gce.purchases()) == 2


@pytest.mark.parametrize("hides_cause", [False, True])
def test_launch__raises_the_cause_from_the_parts_of_an_operation(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests, hides_cause: bool
) -> None:
    gce.faults.hides_cause = hides_cause
    gce.faults.launch_errors["us-central1-a", Market.SPOT] = "QUOTA_EXCEEDED"
    fault = refused(cloud, request_of(num_nodes=2))
    assert (fault.kind, fault.reason, fault.code) == (FaultKind.AVOID_REGION, Reason.QUOTA, "QUOTA_EXCEEDED")
    assert cloud.launch(request_of("t2", market=Market.ON_DEMAND)), "its quota is another"


def test_launch__terminates_leftovers_of_a_failure(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    gce.faults.leaves_some = True
    gce.faults.capacity["us-central1-a"] = 2
    assert refused(cloud, request_of(num_nodes=3)).kind is FaultKind.AVOID_ZONE
    assert len(gce.purchases()) == 2
    assert not gce.living()
    gce.faults.capacity["us-central1-a"] = 3
    again = cloud.launch(request_of(num_nodes=3))
    assert sorted(one.rank for one in again) == [0, 1, 2]
    assert {one.id for one in gce.living()} == {one.id for one in again}


def test_describe__includes_new_machines_that_are_not_listed_yet(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests, clock: ManualClock
) -> None:
    gce.faults.listing_delay_s = 3600
    (machine,) = cloud.launch(request_of())
    assert (machine.state, machine.rank) == (InstanceState.PENDING, 0)
    assert not cloud.list_owned("ctl")
    (seen,) = cloud.describe("us-central1", [machine.id])
    assert (seen.id, seen.state) == (machine.id, machine.state)
    assert not cloud.describe("us-east4", [machine.id])
    clock.advance(RECENT_S)
    assert not cloud.describe("us-central1", [machine.id])


def test_describe__reads_more_machines_than_a_page_or_a_call(
    gce: FakeGce, cloud: GcpCloud, request_of: Requests
) -> None:
    gce.faults.page_size = 20
    machines = [*cloud.launch(request_of(num_nodes=51)), *cloud.launch(request_of("t2", zone="us-east4-a"))]
    assert len(cloud.list_owned("ctl")) == 52
    here = [one.id for one in machines if one.region == "us-central1"]
    assert len(cloud.describe("us-central1", here)) == 51
    cloud.terminate("us-central1", [*here, "us-central1-a/perdure-none-0"])
    assert len(gce.living()) == 1
    assert {one.state for one in cloud.describe("us-central1", here[:3])} == {InstanceState.GONE}


def test_list_owned__fails_if_a_zone_is_unreachable(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    cloud.launch(request_of())
    gce.faults.unreachable = frozenset({"us-east4-a"})
    with pytest.raises(Exception, match="the machines of zones/us-east4-a are temporarily unknown") as caught:
        cloud.list_owned("ctl")
    assert cloud.classify(caught.value).kind is FaultKind.RETRY_LATER


def test_describe__reports_a_preemption_with_its_time(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Requests
) -> None:
    gce.faults.soft_off_s = 0.0
    cloud = new_cloud()
    (machine,) = cloud.launch(request_of())
    gce.interrupt(machine.id)
    (purchases,) = gce.purchases()
    for anybody in (cloud, new_cloud()):  # one that has just started, too: it learns it from Google
        (gone,) = anybody.describe("us-central1", [machine.id])
        assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)
        assert gone.ended_at == purchases.ended_at
    (gone,) = cloud.describe("us-central1", [machine.id])
    assert (gone.owner, gone.launched_at) == (machine.owner, purchases.launched_at)


def test_describe__does_not_count_a_deletion_as_preemption(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of())
    gce.ask("DELETE", f"zones/us-central1-a/instances/{machine.id.partition('/')[2]}")
    (gone,) = cloud.describe("us-central1", [machine.id])
    assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.MACHINE_STOPPED)


def test_describe__is_ending_during_a_preemption(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of())
    cloud.interrupt("us-central1", machine.id, notice_s=None)
    (seen,) = cloud.describe("us-central1", [machine.id])
    assert (seen.state, seen.gone_reason, seen.ended_at) == (InstanceState.ENDING, Reason.PREEMPTED, None)
    assert [one.id for one in cloud.list_owned("ctl")] == [machine.id]


def test_interrupt__rejects_on_demand_machines(cloud: GcpCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    with pytest.raises(Exception, match="not a spot machine") as caught:
        cloud.interrupt("us-central1", machine.id, notice_s=None)
    assert cloud.classify(caught.value).kind is FaultKind.GIVE_UP


def test_launch__rejects_an_invalid_image_before_the_call(gce: FakeGce, cloud: GcpCloud, request_of: Requests) -> None:
    for image in ("skypilot:gpu-ubuntu-2204", "projects/perdure-test/global/images/gone"):
        fault = refused(cloud, request_of(image_id=image))
        assert fault.kind is FaultKind.GIVE_UP
        assert image in fault.message
    assert not gce.purchases()


def test_launch__reports_a_missing_network_with_a_hint(
    gce: FakeGce, new_cloud: Callable[..., GcpCloud], request_of: Requests
) -> None:
    fault = refused(new_cloud(network="gone"), request_of())
    assert (fault.kind, fault.reason) == (FaultKind.GIVE_UP, Reason.BAD_REQUEST)
    assert "networks/gone" in fault.message


def test_launch__keeps_an_owner_that_is_no_valid_label(cloud: GcpCloud, request_of: Requests) -> None:
    odd = Owner("Ctl.1", job_id=7, task=0, generation=1, token="Tok/1")
    (machine,) = cloud.launch(request_of(owner=odd))
    assert machine.owner == odd
    assert [one.owner for one in cloud.list_owned("Ctl.1")] == [odd]
