"""Signs of a pod's or a node's end, from a real API server, node controller, scheduler and eviction API."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration.kubernetes.test_notices import (
    SPOT,
    Site,
    test_cordon__is_a_risk_and_no_notice,
    test_deletion__is_a_notice_with_its_own_deadline,
    test_disruption__is_a_preemption_that_says_by_whom,
    test_end__says_whose_doing_it_was,
    test_lost_node__is_a_preemption_also_for_a_controller_that_was_away,
    test_own_termination__is_no_notice,
    test_second_deletion__is_a_notice_with_the_shorter_deadline,
    test_shutdown_of_the_node__is_a_notice,
    test_silent_node__keeps_its_pod_until_the_limit,
    test_taints__are_notices_with_the_vendors_deadline_or_risks,
)
from perdure.controller.clouds.base.notice_queue import Signal
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.helpers.timing import wait_until
from support.real_kube import RealKube

pytestmark = pytest.mark.kubernetes

__all__ = [
    "test_cordon__is_a_risk_and_no_notice",
    "test_deletion__is_a_notice_with_its_own_deadline",
    "test_disruption__is_a_preemption_that_says_by_whom",
    "test_end__says_whose_doing_it_was",
    "test_lost_node__is_a_preemption_also_for_a_controller_that_was_away",
    "test_own_termination__is_no_notice",
    "test_second_deletion__is_a_notice_with_the_shorter_deadline",
    "test_shutdown_of_the_node__is_a_notice",
    "test_silent_node__keeps_its_pod_until_the_limit",
    "test_taints__are_notices_with_the_vendors_deadline_or_risks",
]


@pytest.fixture
def site(
    kube: RealKube, new_cloud: Callable[..., KubernetesCloud], request_of: Callable[..., LaunchRequest]
) -> Iterator[Site]:
    kube.add_node("n1", labels=SPOT)
    site = Site(kube, new_cloud(), request_of(market=Market.SPOT))  # type: ignore[arg-type]
    yield site
    site.stop()


def test_eviction__is_a_notice_with_its_grace(site: Site) -> None:
    """Version 1.20 sets no condition of its own accord."""
    site.kube.evict(site.machine.id, 30)
    notice = site.until(Signal.NOTICE)
    assert notice.deadline is not None
    assert 20 < notice.deadline - SystemClock().now() <= 31


def test_interruption__is_an_eviction(site: Site) -> None:
    site.cloud.interrupt(site.kube.context, site.machine.id, notice_s=20)
    site.until(Signal.NOTICE)
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert (described.state, described.gone_reason) == (InstanceState.ENDING, Reason.PREEMPTED)


def test_interruption__that_a_disruption_budget_forbids_is_refused(site: Site) -> None:
    assert isinstance(site.kube, RealKube)
    site.kube.forbid_disruptions()
    with pytest.raises(Exception, match="disruption budget"):
        site.cloud.interrupt(site.kube.context, site.machine.id, notice_s=20)
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert described.state is InstanceState.RUNNING


def test_higher_class__takes_the_place_with_a_notice(site: Site) -> None:
    """The scheduler ends the pod for another one that needs its room."""
    assert isinstance(site.kube, RealKube)
    site.kube.add_pod_of_class("urgent", 1000, cpu="7500m")
    notice = site.until(Signal.NOTICE)
    assert notice.instance_id == site.machine.id
    pod = site.kube.client.get(f"/api/v1/namespaces/{site.kube.namespace}/pods/{site.machine.id}")
    assert "deletionTimestamp" in pod["metadata"]


def test_taint_that_ends_pods__is_a_notice(site: Site) -> None:
    site.kube.taint("n1", "example.com/maintenance", "NoExecute")
    assert site.until(Signal.NOTICE).instance_id == site.machine.id


def test_node_that_falls_silent__is_an_end_to_look_into(site: Site) -> None:
    """Its lease is no longer renewed: the node controller says so, and nothing ends the pod for an hour."""
    site.kube.set_ready("n1", "Unknown")
    assert site.until(Signal.ENDING).instance_id == site.machine.id
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert described.state is InstanceState.RUNNING
    pod = site.kube.pod(site.machine.id)
    assert pod is not None
    assert "deletionTimestamp" not in pod["metadata"]


def test_notice__comes_within_a_second(site: Site) -> None:
    clock = SystemClock()
    began = clock.now()
    site.kube.delete_pod(site.machine.id, 60)
    wait_until(lambda: [one for one in site.signals if one.signal is Signal.NOTICE], "the notice", 10, poll_s=0.01)
    assert clock.now() - began < 1.0
