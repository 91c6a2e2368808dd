"""The roles of deploy/kubernetes/rbac.yaml on a real server: they suffice, and `check` names what is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.kubernetes.conftest import cloud_maker
from integration.kubernetes.test_notices import Site
from perdure.controller.clouds.base.account_checks import Severity
from perdure.controller.clouds.base.notice_queue import Signal
from perdure.controller.clouds.base.protocol import InstanceState
from perdure.recovery.reasons import Reason
from support.helpers.launch_requests import launch_request
from support.helpers.timing import wait_until
from support.real_kube import RealKube

pytestmark = pytest.mark.kubernetes
NODE_TYPES = [{"vcpus": 4, "memory_gib": 16, "zones": ["zone-1"], "spot": True, "labels": {"pool": "spot"}}]


@pytest.mark.parametrize("kinds", [("Role", "ClusterRole"), ("Role",)], ids=["with-nodes", "without-nodes"])
def test_roles__suffice_for_everything(new_kube: Callable[..., RealKube], kinds: tuple[str, ...]) -> None:
    kube = new_kube(kinds=kinds)
    kube.add_node("n1", labels={"pool": "spot", "karpenter.sh/capacity-type": "spot"})
    labels = {"pool": "spot", "karpenter.sh/capacity-type": "spot"}
    node_types = [{"vcpus": 4, "memory_gib": 16, "zones": ["zone-1"], "labels": labels}]
    cloud = cloud_maker(kube)(node_types=node_types)
    assert cloud.offers()
    site = Site(
        kube, cloud, launch_request("kubernetes", kube.context, "zone-1", "1CPU--2GB"), sees_nodes=len(kinds) > 1
    )  # type: ignore[arg-type]
    try:
        cloud.interrupt(kube.context, site.machine.id, notice_s=1)
        site.until(Signal.NOTICE)
        assert [one.id for one in cloud.list_owned("ctl")] == [site.machine.id]

        def is_gone() -> bool:
            (one,) = cloud.describe(kube.context, [site.machine.id])
            return one.state is InstanceState.GONE and one.gone_reason is Reason.PREEMPTED

        wait_until(is_gone, "the end of the pod", 30)
        cloud.terminate(kube.context, [site.machine.id])
    finally:
        site.stop()
    findings = cloud.check()
    assert {one.severity for one in findings} <= {Severity.OK, Severity.WARNING}, findings
    missing = [one.text for one in findings if "is missing" in one.text]
    assert bool(missing) is ("ClusterRole" not in kinds), missing


def test_check__names_each_right_that_is_missing(new_kube: Callable[..., RealKube]) -> None:
    kube = new_kube(kinds=())
    findings = cloud_maker(kube)().check()
    errors = [one for one in findings if one.severity is Severity.ERROR]
    assert any("create pods in the namespace is missing" in one.text for one in errors), findings
    assert all("deploy/kubernetes/rbac.yaml" in str(one.fix) for one in errors)


def test_account_without_a_role__is_told_what_to_grant(new_kube: Callable[..., RealKube]) -> None:
    kube = new_kube(kinds=("ClusterRole",))
    kube.add_node("n1")
    cloud = cloud_maker(kube)()
    with pytest.raises(Exception, match="cannot get resource") as rejected:
        cloud.launch(launch_request("kubernetes", kube.context, "zone-1", "1CPU--2GB"))
    assert "deploy/kubernetes/rbac.yaml" in cloud.classify(rejected.value).message
