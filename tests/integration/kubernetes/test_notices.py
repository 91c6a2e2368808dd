"""Every sign of a pod's or a node's end becomes a signal at once; the controller's own terminations do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from perdure.controller.clouds.base.notice_queue import MachineSignal, Signal
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.controller.clouds.kubernetes.waits.scale_ups import ScaleUps
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube
from support.helpers.timing import scaled, wait_until

SPOT = {"cloud.google.com/gke-spot": "true"}


class Site:
    """One pod on one node, watched."""

    def __init__(
        self, kube: FakeKube, cloud: KubernetesCloud, request: LaunchRequest, *, sees_nodes: bool = True
    ) -> None:
        self.kube, self.cloud = kube, cloud
        (queue,) = cloud.notice_queues()
        assert isinstance(queue, ContextWatch)
        self.queue = queue
        self.signals: list[MachineSignal] = []
        self._stopped = threading.Event()
        threading.Thread(target=self._consume, daemon=True).start()
        watches = (queue.pods, queue.nodes) if sees_nodes else (queue.pods,)
        wait_until(lambda: all(one.is_synced.is_set() for one in watches), "the lists", 10)
        (self.machine,) = cloud.launch(request)
        wait_until(lambda: self.is_seen_running(self.machine.id), "the pod in the watch", 10)

    def until(self, signal: Signal) -> MachineSignal:
        return wait_until(lambda: next((one for one in self.signals if one.signal is signal), None), signal.value, 10)

    def stop(self) -> None:
        self._stopped.set()
        self.queue.stop()

    def is_seen_running(self, id: str) -> bool:
        pod = self.queue.pods.find(id)
        return pod is not None and pod["status"]["phase"] == "Running"

    def _consume(self) -> None:
        while not self._stopped.is_set():
            messages = self.queue.receive()
            self.signals += [signal for message in messages for signal in self.queue.parse(message)]
            self.queue.delete(messages)


@pytest.fixture
def site(
    kube: FakeKube, new_cloud: Callable[..., KubernetesCloud], request_of: Callable[..., LaunchRequest]
) -> Iterator[Site]:
    kube.add_node("n1", labels=SPOT)
    site = Site(kube, new_cloud(), request_of(market=Market.SPOT))
    yield site
    site.stop()


TAINTS_OF_NOTICES = (
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "remediator.kubernetes.azure.com/unschedulable",
    "remediator.aks.microsoft.com/unschedulable",
)
TAINTS_OF_RISKS = (
    "DeletionCandidateOfClusterAutoscaler",
    "aws-node-termination-handler/rebalance-recommendation",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
)


def test_taints__are_notices_with_the_vendors_deadline_or_risks(
    site: Site, request_of: Callable[..., LaunchRequest]
) -> None:
    """Each taint alone, on a node of its own."""
    harmless = "example.com/other"
    taints = (*TAINTS_OF_NOTICES, *TAINTS_OF_RISKS, harmless)
    zones = {taint: f"zone-of-{number}" for number, taint in enumerate(taints)}
    for zone in zones.values():
        site.kube.add_node(zone, zone=zone, labels=SPOT)
    wait_until(lambda: len(site.queue.nodes.snapshot()) == len(zones) + 1, "the nodes in the watch", 10)
    site.cloud.cluster(site.kube.context).nodes(max_age_s=0.0)
    pods = {
        taint: site.cloud.launch(request_of(taint, zone=zone, market=Market.SPOT))[0].id
        for taint, zone in zones.items()
    }
    wait_until(lambda: all(site.is_seen_running(pod) for pod in pods.values()), "the pods in the watch", 10)
    site.kube.taint(zones[harmless], harmless)
    for taint in taints[:-1]:
        known = len(site.signals)
        site.kube.taint(zones[taint], taint)
        tainted_at, now = time.monotonic(), SystemClock().now()
        signal = wait_until(lambda known=known: site.signals[known:], taint, 10)[0]  # type: ignore[misc]
        assert time.monotonic() - tainted_at < scaled(1), taint
        assert signal.instance_id == pods[taint]
        assert signal.signal is (Signal.NOTICE if taint in TAINTS_OF_NOTICES else Signal.AT_RISK), taint
        if signal.signal is Signal.NOTICE:
            assert signal.deadline is not None
            assert 10 < signal.deadline - now <= 16, f"{taint}: GKE leaves 15 s"
    assert [one.instance_id for one in site.signals] == [pods[taint] for taint in taints[:-1]], "one signal for each"


def test_cordon__is_a_risk_and_no_notice(site: Site) -> None:
    site.kube.change_node("n1", unschedulable=True)
    site.until(Signal.AT_RISK)
    assert [one.signal for one in site.signals] == [Signal.AT_RISK]


def test_shutdown_of_the_node__is_a_notice(site: Site) -> None:
    site.kube.set_ready("n1", "False", "node is shutting down")
    site.until(Signal.NOTICE)


def test_deletion__is_a_notice_with_its_own_deadline(site: Site) -> None:
    site.kube.delete_pod(site.machine.id, 40)
    notice = site.until(Signal.NOTICE)
    assert notice.deadline is not None
    assert 30 < notice.deadline - SystemClock().now() <= 41
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert (described.state, described.gone_reason) == (InstanceState.ENDING, Reason.MACHINE_STOPPED)


def test_second_deletion__is_a_notice_with_the_shorter_deadline(site: Site) -> None:
    site.kube.faults.stop_s = 60
    site.kube.delete_pod(site.machine.id, 40)
    first = site.until(Signal.NOTICE).deadline
    site.kube.delete_pod(site.machine.id, 20)
    second = wait_until(lambda: site.signals[1:], "the second notice", 10)[0].deadline
    assert first is not None
    assert second is not None
    assert 15 < first - second <= 21


@pytest.mark.parametrize(
    "reason",
    [
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "EvictionByEvictionAPI",
        "DeletionByPodGC",
        "TerminationByKubelet",
    ],
)
def test_disruption__is_a_preemption_that_says_by_whom(site: Site, reason: str) -> None:
    site.kube.disrupt(site.machine.id, reason, 1)
    site.until(Signal.NOTICE)
    wait_until(lambda: not site.kube.pods(), "the end of the pod", 10)
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert (described.state, described.gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)
    assert reason in described.gone_message


def test_lost_node__is_a_preemption_also_for_a_controller_that_was_away(
    site: Site, new_cloud: Callable[..., KubernetesCloud]
) -> None:
    site.kube.remove_node("n1")
    site.until(Signal.ENDING)
    for cloud in (new_cloud(), site.cloud):
        (described,) = cloud.describe(site.kube.context, [site.machine.id])
        assert (described.state, described.gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)


def test_own_termination__is_no_notice(site: Site) -> None:
    site.kube.faults.stop_s = 0.1
    site.cloud.terminate(site.kube.context, [site.machine.id])
    wait_until(lambda: not site.kube.pods(), "the end of the pod", 10)
    wait_until(lambda: site.queue.pods.find(site.machine.id) is None, "its removal from the watch", 10)
    assert Signal.NOTICE not in [one.signal for one in site.signals]


def test_rights__that_are_missing_for_a_moment_cost_no_notice(
    kube: FakeKube, new_cloud: Callable[..., KubernetesCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """An API server that has just started knows no roles yet, and forbids everything."""
    kube.add_node("n1", labels=SPOT)
    kube.faults.forbid |= {"list pods", "list nodes"}
    cloud = new_cloud()
    (queue,) = cloud.notice_queues()
    assert isinstance(queue, ContextWatch)
    threading.Thread(target=queue.receive, daemon=True).start()
    try:
        wait_until(lambda: kube.calls["GET pods"] and kube.calls["GET nodes"], "the first lists", 10)
        kube.faults.forbid.clear()
        wait_until(lambda: queue.pods.is_synced.is_set() and queue.nodes.is_synced.is_set(), "the next lists", 10)
    finally:
        queue.stop()


def test_notice__waits_for_no_question_to_the_api(
    kube: FakeKube,
    new_cloud: Callable[..., KubernetesCloud],
    request_of: Callable[..., LaunchRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube.add_node("n1", cpu=4, memory_gib=16, labels=SPOT)
    site = Site(kube, new_cloud(autoscaler="generic", provision_timeout=0.1), request_of(market=Market.SPOT))
    released, find = threading.Event(), Cluster.find
    asked: list[str] = []

    def find_slowly(cluster: Cluster, resource: str, name: str) -> object:
        asked.append(name)
        if threading.current_thread().name.startswith("kubernetes-"):
            released.wait(30)
        return find(cluster, resource, name)

    def wait_for_autoscaler(*_: object) -> None:
        asked.append("an autoscaler")
        released.wait(30)

    try:
        monkeypatch.setattr(ScaleUps, "sign_for", wait_for_autoscaler)
        (deleted,) = site.cloud.launch(request_of("deleted", market=Market.SPOT))
        launching = threading.Thread(
            target=site.cloud.launch, args=[request_of("waits", kind="3CPU--4GB", market=Market.SPOT)]
        )
        launching.start()
        wait_until(lambda: "an autoscaler" in asked, "the check of the pod that waits", 10)
        monkeypatch.setattr(Cluster, "find", find_slowly)
        kube.delete_pod(deleted.id, 30)
        wait_until(lambda: asked[1:], "the question whose deletion that was", 10)
        kube.evict(site.machine.id, 30)
        assert site.until(Signal.NOTICE).instance_id == site.machine.id
        assert len(asked) == 2, "an eviction says by itself that it is no controller's"
        released.set()
        wait_until(lambda: deleted.id in [one.instance_id for one in site.signals], "the notice of the deletion", 10)
    finally:
        released.set()
        site.stop()
    launching.join()


def test_interruption__that_is_refused_leaves_no_mark(site: Site) -> None:
    site.kube.faults.answers["POST pods/eviction"] = [
        (429, "Cannot evict pod as it would violate the disruption budget.")
    ]
    with pytest.raises(ApiError, match="disruption budget"):
        site.cloud.interrupt(site.kube.context, site.machine.id, notice_s=1)
    site.kube.end_container(site.machine.id, 3, "Error", "boom")
    site.until(Signal.ENDING)
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert described.gone_reason is Reason.MACHINE_CRASHED


@pytest.mark.parametrize(
    ("end", "reason", "words"),
    [
        (lambda kube, id: kube.end_container(id, 137, "OOMKilled"), Reason.RUN_FAILED, "more memory than its limit"),
        (
            lambda kube, id: kube.fail_pod(id, "Evicted", 'Usage of EmptyDir volume "state" exceeds the limit "1Gi".'),
            Reason.RUN_FAILED,
            "EmptyDir",
        ),
        (
            lambda kube, id: kube.fail_pod(id, "Evicted", "The node was low on resource: memory."),
            Reason.PREEMPTED,
            "low on resource",
        ),
        (
            lambda kube, id: kube.fail_pod(id, "Terminated", "terminated in response to imminent node shutdown."),
            Reason.PREEMPTED,
            "imminent node shutdown",
        ),
        (lambda kube, id: kube.end_container(id, 3, "Error", "boom"), Reason.MACHINE_CRASHED, "boom"),
    ],
    ids=["oom", "own-limit", "node-pressure", "shutdown", "crash"],
)
def test_end__says_whose_doing_it_was(
    site: Site, end: Callable[[FakeKube, str], None], reason: Reason, words: str
) -> None:
    end(site.kube, site.machine.id)
    site.until(Signal.ENDING)
    (described,) = site.cloud.describe(site.kube.context, [site.machine.id])
    assert (described.state, described.gone_reason) == (InstanceState.GONE, reason)
    assert words in described.gone_message


def test_silent_node__keeps_its_pod_until_the_limit(
    kube: FakeKube, new_cloud: Callable[..., KubernetesCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    kube.add_node("n1")
    cloud = new_cloud(silent_node_s=0.1)
    (machine,) = cloud.launch(request_of())
    kube.faults.no_kubelet.add("n1")
    kube.set_ready("n1", "Unknown", "Kubelet stopped posting node status.")
    kube.delete_pod(machine.id, 1)
    assert cloud.describe(kube.context, [machine.id])[0].state is InstanceState.ENDING

    def is_gone() -> bool:
        (one,) = cloud.describe(kube.context, [machine.id])
        return one.state is InstanceState.GONE and one.gone_reason in (Reason.UNREACHABLE, Reason.MACHINE_STOPPED)

    wait_until(is_gone, "the end of the wait for the node", 15)
    assert kube.pod(machine.id) is not None, "the pod is not deleted by force"
