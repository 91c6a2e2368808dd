"""`perdure check` of a Google Cloud project."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from perdure.controller.clouds.base.account_checks import Finding, Severity
from perdure.controller.clouds.gcp.cloud import GcpCloud
from support.fakes import google_account
from support.fakes.gce import FakeGce
from support.fakes.gce.fleet import PROJECT

pytestmark = pytest.mark.long


def bad(findings: Iterable[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity is not Severity.OK]


def test_account_check__passes_and_launches_nothing(gce: FakeGce, cloud: GcpCloud) -> None:
    findings = cloud.check()
    assert not bad(findings)
    assert google_account.email(PROJECT) in findings[0].text
    assert {one.subject for one in findings} == {"credentials", "permissions", "regions", "quotas", "prices"}
    (cpus,) = [one for one in findings if one.text.startswith("on-demand vCPUs")]
    assert "16 of 24 left in us-central1" in cpus.text
    assert not gce.purchases()


def test_missing_permission__is_named_with_its_purpose(
    gce: FakeGce, cloud: GcpCloud, new_cloud: Callable[..., GcpCloud]
) -> None:
    gce.faults.forbid = {
        *("compute.instances.create", "compute.instances.setServiceAccount"),
        "compute.instances.simulateMaintenanceEvent",
    }
    lacking = {one.text.partition(" ")[0]: one.severity for one in bad(cloud.check())}
    assert lacking == {
        "compute.instances.create": Severity.ERROR,
        "compute.instances.simulateMaintenanceEvent": Severity.WARNING,
    }
    with_account = bad(new_cloud(service_account="nodes@perdure-test").check())
    assert "compute.instances.setServiceAccount" in {one.text.partition(" ")[0] for one in with_account}


def test_zero_quota__is_reported_and_spot_uses_the_common_quota(gce: FakeGce, cloud: GcpCloud) -> None:
    for region in gce.regions:
        gce.faults.quotas |= {(region, "PREEMPTIBLE_NVIDIA_L4_GPUS"): 0, (region, "PREEMPTIBLE_CPUS"): 0}
        gce.faults.quotas[region, "NVIDIA_L4_GPUS"] = 0
    findings = cloud.check()
    assert {one.text for one in bad(findings)} == {
        "spot L4 GPUs: nothing left in any of 2 regions",
        "on-demand L4 GPUs: nothing left in any of 2 regions",
    }
    (cpus,) = [one for one in findings if one.text.startswith("spot vCPUs")]
    assert "16 of 24 left in us-central1" in cpus.text, "those of on-demand machines"


def test_region__that_does_not_exist_is_named(new_cloud: Callable[..., GcpCloud]) -> None:
    (missing,) = bad(new_cloud(regions=("us-central1", "us-nowhere1")).check())
    assert (missing.subject, missing.severity) == ("regions", Severity.WARNING)
    assert "us-nowhere1" in missing.text


def test_denied_price_list__does_not_fail_the_check(gce: FakeGce, cloud: GcpCloud) -> None:
    gce.faults.prices_away = True
    (prices,) = bad(cloud.check())
    assert (prices.subject, prices.severity) == ("prices", Severity.UNKNOWN)
    assert "SERVICE_DISABLED" in prices.text
    assert prices.fix is not None
    assert "gcloud services enable cloudbilling.googleapis.com" in prices.fix


def test_disabled_api__is_the_only_finding(gce: FakeGce, cloud: GcpCloud) -> None:
    gce.faults.deny = "accessNotConfigured"
    (only,) = cloud.check()
    assert (only.subject, only.severity) == ("credentials", Severity.ERROR)
    assert "gcloud services enable" in only.text


def test_rehearsal__looks_up_the_images(gce: FakeGce, cloud: GcpCloud, new_cloud: Callable[..., GcpCloud]) -> None:
    (finding,) = cloud.rehearse()
    assert finding.severity is Severity.OK
    retired = "projects/ubuntu-os-cloud/global/images/family/ubuntu-1804-lts"
    rejected = new_cloud(image=retired).rehearse()
    assert {one.severity for one in rejected} == {Severity.ERROR}, "no machine can boot"
    assert all("ubuntu-1804-lts" in one.text for one in rejected)
    assert not gce.purchases()
