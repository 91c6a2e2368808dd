"""What `perdure check` finds out of a project."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import google_account
from fake_gce import FakeGce
from fake_gce.fleet import PROJECT
from perdure.controller.clouds.checks import Finding, Outcome
from perdure.controller.clouds.gcp.cloud import GcpCloud


def bad(found: Iterable[Finding]) -> list[Finding]:
    return [one for one in found if one.outcome is not Outcome.OK]


def test_a_project_that_allows_all_is_told_so_and_nothing_is_bought(gce: FakeGce, cloud: GcpCloud) -> None:
    found = cloud.check()
    assert not bad(found)
    assert google_account.email(PROJECT) in found[0].text
    assert {one.about for one in found} == {"credentials", "permissions", "regions", "quotas", "prices"}
    (cpus,) = [one for one in found if one.text.startswith("on-demand vCPUs")]
    assert "16 of 24 left in us-central1" in cpus.text
    assert not gce.bought()


def test_what_the_role_lacks_is_named_with_what_it_is_for(
    gce: FakeGce, cloud: GcpCloud, new_cloud: Callable[..., GcpCloud]
) -> None:
    gce.faults.forbid = {
        *("compute.instances.create", "compute.instances.setServiceAccount"),
        "compute.instances.simulateMaintenanceEvent",
    }
    lacking = {one.text.partition(" ")[0]: one.outcome for one in bad(cloud.check())}
    assert lacking == {
        "compute.instances.create": Outcome.FAILS,
        "compute.instances.simulateMaintenanceEvent": Outcome.LIMITS,
    }
    with_account = bad(new_cloud(service_account="nodes@perdure-test").check())
    assert "compute.instances.setServiceAccount" in {one.text.partition(" ")[0] for one in with_account}


def test_a_quota_of_nothing_is_told_and_spot_machines_count_among_the_others(gce: FakeGce, cloud: GcpCloud) -> None:
    for region in gce.regions:
        gce.faults.quotas |= {(region, "PREEMPTIBLE_NVIDIA_L4_GPUS"): 0, (region, "PREEMPTIBLE_CPUS"): 0}
        gce.faults.quotas[region, "NVIDIA_L4_GPUS"] = 0
    found = cloud.check()
    assert {one.text for one in bad(found)} == {
        "spot L4 GPUs: nothing left in any of 2 regions",
        "on-demand L4 GPUs: nothing left in any of 2 regions",
    }
    (cpus,) = [one for one in found if one.text.startswith("spot vCPUs")]
    assert "16 of 24 left in us-central1" in cpus.text, "those of on-demand machines"


def test_a_region_that_is_not_there_is_named(new_cloud: Callable[..., GcpCloud]) -> None:
    (missing,) = bad(new_cloud(regions=("us-central1", "us-nowhere1")).check())
    assert (missing.about, missing.outcome) == ("regions", Outcome.LIMITS)
    assert "us-nowhere1" in missing.text


def test_a_price_list_that_is_not_told_is_no_reason_to_buy_nothing(gce: FakeGce, cloud: GcpCloud) -> None:
    gce.faults.prices_away = True
    (prices,) = bad(cloud.check())
    assert (prices.about, prices.outcome) == ("prices", Outcome.UNKNOWN)
    assert "SERVICE_DISABLED" in prices.text
    assert prices.fix is not None
    assert "gcloud services enable cloudbilling.googleapis.com" in prices.fix


def test_an_api_that_is_not_enabled_is_all_that_is_told(gce: FakeGce, cloud: GcpCloud) -> None:
    gce.faults.deny = "accessNotConfigured"
    (only,) = cloud.check()
    assert (only.about, only.outcome) == ("credentials", Outcome.FAILS)
    assert "gcloud services enable" in only.text
