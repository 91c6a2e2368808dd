"""Launches survive a kill at every request, lost answers, conflicts and policies of the namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.pods import names, room
from perdure.controller.clouds.kubernetes.pods.machines import START_RETRIES_S
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube
from support.fakes.kube.schemas import VERSIONS, is_available, schema_errors
from support.helpers.timing import wait_until

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]


class Killed(BaseException):
    """The controller dies here."""


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """Let the controller die right before, or right after, its request of that number."""
    original, count = ApiClient.request, iter(range(1000))

    def request(client: ApiClient, *arguments: Any, **named: Any) -> dict[str, Any]:
        is_last = next(count) == number
        if is_last and not after:
            raise Killed
        answer = original(client, *arguments, **named)
        if is_last:
            raise Killed
        return answer

    monkeypatch.setattr(ApiClient, "request", request)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_launch__killed_at_any_request_makes_exactly_one_set_of_pods(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    kube.add_node("n1", cpu=32, memory_gib=128)
    finished = 0
    for number in range(40):
        request = request_of(f"token-{number}", num_nodes=3)
        with monkeypatch.context() as patch:
            kill_at(patch, number, after=after)
            try:
                new_cloud().launch(request)
                finished += 1
            except Killed:
                pass
        launched = new_cloud().launch(request)
        own = [pod for pod in kube.pods() if names.owner_of(pod) == request.owner]
        assert sorted(one.rank for one in launched) == [0, 1, 2]
        assert len(own) == 3
        assert all(pod["status"]["phase"] == "Running" for pod in own), "every gate is open"
        new_cloud().terminate(kube.context, [one.id for one in launched])
        for pod in own:
            kube.end_container(pod["metadata"]["name"], 0, "Completed")
        wait_until(lambda: not kube.pods(), "the end of the pods", 10)
        again = new_cloud().launch(request)
        assert [one.state for one in again] == [InstanceState.GONE] * 3, "a token never gets a second set"
        if finished:
            return
    pytest.fail("the launch never finished")


@pytest.mark.parametrize("request_name", ["POST secrets", "POST pods", "PATCH secrets", "PATCH pods"])
def test_launch__with_a_lost_answer_is_ambiguous_and_repeatable(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, request_name: str
) -> None:
    kube.add_node("n1")
    cloud = new_cloud()
    kube.faults.lost_answers[request_name] = 1
    with pytest.raises(ConnectionError) as broken:
        cloud.launch(request_of(num_nodes=2))
    assert cloud.classify(broken.value).kind is FaultKind.AMBIGUOUS
    assert len(cloud.launch(request_of(num_nodes=2))) == 2
    assert len(kube.pods()) == 2


@pytest.mark.parametrize(
    ("status", "text", "kind", "reason"),
    [
        (429, "slow down", FaultKind.RETRY_LATER, Reason.THROTTLED),
        (500, "etcd", FaultKind.AMBIGUOUS, Reason.NO_CAPACITY),
        (401, "expired", FaultKind.AVOID_REGION, Reason.BAD_CREDENTIALS),
        (422, "spec.x: Invalid value", FaultKind.GIVE_UP, Reason.BAD_REQUEST),
        (403, 'pods is forbidden: User "x" cannot create resource', FaultKind.AVOID_REGION, Reason.BAD_CREDENTIALS),
        (403, "admission webhook denied the request", FaultKind.GIVE_UP, Reason.BAD_REQUEST),
        (403, "namespace x because it is being terminated", FaultKind.AVOID_REGION, Reason.BAD_REQUEST),
    ],
)
def test_rejection__says_what_to_do_next_and_leaves_nothing(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, status: int, text: str, kind: FaultKind, reason: Reason
) -> None:
    kube.add_node("n1")
    cloud = new_cloud()
    kube.faults.answers["POST pods"] = [(status, text)]
    with pytest.raises(Exception, match=text[:6]) as rejected:
        cloud.launch(request_of())
    fault = cloud.classify(rejected.value)
    assert (fault.kind, fault.reason) == (kind, reason)
    assert not kube.pods()
    if kind is not FaultKind.AMBIGUOUS and status not in (401, 429):
        assert not kube.secrets()
    assert len(cloud.launch(request_of())) == 1


def test_quota__is_named(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1")
    kube.faults.quota_pods = 1
    cloud = new_cloud()
    with pytest.raises(Exception, match="exceeded quota") as rejected:
        cloud.launch(request_of(num_nodes=2))
    fault = cloud.classify(rejected.value)
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_REGION, Reason.QUOTA)
    assert not kube.pods()
    assert not kube.secrets()


def test_restricted_namespace__gets_pods_without_root(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1")
    kube.faults.restricted = True
    (launched,) = new_cloud().launch(request_of())
    pod = kube.pod(launched.id)
    assert pod is not None
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["status"]["phase"] == "Running"


def test_gang__that_does_not_fit_holds_no_node(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    for number in range(6):
        kube.add_node(f"n{number}", cpu=1.5, memory_gib=4)
    cloud = new_cloud()
    assert len(cloud.launch(request_of("first", num_nodes=4))) == 4
    with pytest.raises(Exception, match="room for 2 of 4 pods") as full:
        cloud.launch(request_of("second", num_nodes=4))
    assert cloud.classify(full.value).kind is FaultKind.AVOID_ZONE
    assert len(kube.pods()) == 4


def test_launches__share_a_list_of_the_pods_and_still_see_each_other(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, fetch = [], Cluster._list_room_takers

    def count(cluster: Cluster) -> list[dict[str, Any]]:
        lists.append(1)
        return fetch(cluster)

    monkeypatch.setattr(Cluster, "_list_room_takers", count)
    monkeypatch.setattr(room, "PODS_AGE_S", 3600.0)
    kube.add_node("n1", cpu=4.5, memory_gib=16)
    cloud = new_cloud()
    for number in range(4):
        (launched,) = cloud.launch(request_of(f"token-{number}"))
    assert len(lists) == 1
    with pytest.raises(Exception, match="room for 0 of 1 pods"):
        cloud.launch(request_of("too-many"))
    assert len(lists) == 2, "nothing is rejected because of an old list"
    kube.end_container(launched.id, 0, "Completed")
    cloud.launch(request_of("next"))
    assert len(lists) == 3


def test_spot_pods__land_on_spot_nodes_of_every_vendor_and_others_never_do(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    spot = {
        "gke": ("cloud.google.com/gke-spot", "true"),
        "karpenter": ("karpenter.sh/capacity-type", "spot"),
        "eks": ("eks.amazonaws.com/capacityType", "SPOT"),
        "aks": ("kubernetes.azure.com/scalesetpriority", "spot"),
        "own": ("capacity", "cheap"),
    }
    for zone, (key, value) in spot.items():
        taint = {"key": key, "value": value, "effect": "NoSchedule"}
        kube.add_node(f"{zone}-spot", zone=zone, labels={key: value}, taints=[taint])
        kube.add_node(f"{zone}-fixed", zone=zone)
    cloud = new_cloud(spot_label={"key": "capacity", "value": "cheap"})
    offers = {(one.zone, one.market) for one in cloud.offers()}
    assert offers == {(zone, market) for zone in spot for market in Market}
    for zone in spot:
        for market, node in ((Market.SPOT, "spot"), (Market.ON_DEMAND, "fixed")):
            (launched,) = cloud.launch(request_of(f"{zone}-{market}", zone=zone, market=market))
            pod = kube.pod(launched.id)
            assert pod is not None
            assert pod["spec"]["nodeName"] == f"{zone}-{node}"


def test_gpu_task__lands_on_a_whole_gpu_only(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    gpu = {"nvidia.com/gpu": 8}
    product = "nvidia.com/gpu.product"
    kube.add_node("mig", cpu=96, memory_gib=1000, resources=gpu, labels={product: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"})
    shared = {product: "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    kube.add_node("shared", cpu=96, memory_gib=1000, resources=gpu, labels=shared)
    kube.add_node("unlabelled", cpu=96, memory_gib=1000, resources=gpu)
    kube.add_node("whole", cpu=96, memory_gib=1000, resources=gpu, labels={product: "NVIDIA-H100-80GB-HBM3"})
    gke = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    kube.add_node("gke", cpu=96, memory_gib=1000, resources=gpu, labels=gke)
    cloud = new_cloud()
    offered = {one.accelerators[0] for one in cloud.offers() if one.accelerators}
    assert offered == {"H100", "H100-MIG-1g.10gb", "H100-SHARED"}
    offer = next(one for one in cloud.offers() if one.accelerators == ("H100", 8.0))
    used = set()
    for number in range(2):
        (launched,) = cloud.launch(request_of(f"t{number}", kind=offer.instance_type, accelerators=("H100", 8.0)))
        pod = kube.pod(launched.id)
        assert pod is not None
        used.add(pod["spec"]["nodeName"])
    assert used == {"whole", "gke"}, "both labels mean the same GPU"
    with pytest.raises(Exception, match="room for 0 of 1"):
        cloud.launch(request_of("t3", kind=offer.instance_type, accelerators=("H100", 8.0)))


@pytest.mark.parametrize(("gpus", "adapters"), [(8, "32"), (2, "8")])
def test_best_network__gets_adapters_in_proportion_to_gpus(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, gpus: int, adapters: str
) -> None:
    resources = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5128Mi"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    for number in range(2):
        kube.add_node(f"n{number}", cpu=192, memory_gib=2000, resources=resources, labels=labels)
    cloud = new_cloud()
    offer = next(one for one in cloud.offers() if one.accelerators == ("H100", float(gpus)))
    request = request_of(kind=offer.instance_type, num_nodes=2, network_tier="best", accelerators=("H100", float(gpus)))
    cloud.launch(request)
    for pod in kube.pods():
        assert pod["status"]["phase"] == "Running"
        asked = pod["spec"]["containers"][0]["resources"]
        for part in ("requests", "limits"):
            assert asked[part]["nvidia.com/gpu"] == str(gpus)
            assert asked[part]["vpc.amazonaws.com/efa"] == adapters
        assert asked["requests"].get("hugepages-2Mi") == ("5Gi" if gpus == 8 else None)
        assert {"name": "FI_PROVIDER", "value": "efa"} in pod["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(("mark", "grace_s"), [("cloud.google.com/gke-spot", 15), ("karpenter.sh/capacity-type", 70)])
def test_grace__is_what_the_vendor_leaves(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, mark: str, grace_s: int
) -> None:
    kube.add_node("n1", labels={mark: "true" if "gke" in mark else "spot"})
    (launched,) = new_cloud().launch(request_of(market=Market.SPOT))
    pod = kube.pod(launched.id)
    assert pod is not None
    assert pod["spec"]["terminationGracePeriodSeconds"] == grace_s
    assert {"name": "PERDURE_GRACE_S", "value": str(grace_s)} in pod["spec"]["containers"][0]["env"]


def test_old_anchor__is_removed_with_the_next_listing(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1")
    kube.faults.stop_s = 0.0
    cloud = new_cloud()
    (launched,) = cloud.launch(request_of())
    cloud.terminate(kube.context, [launched.id])
    wait_until(lambda: not kube.pods(), "the end of the pod", 10)
    assert not cloud.list_owned("ctl")
    assert len(kube.secrets()) == 1, "a repeated launch must find it"
    with kube.store.lock:
        anchor = kube.store.all("secrets")[0]
        anchor["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
        anchor["metadata"]["annotations"]["perdure.dev/terminated"] = "1"
    assert not cloud.list_owned("ctl")
    assert not kube.secrets()


def test_waiting_pod__is_given_up_unless_an_autoscaler_helps(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1", cpu=2, memory_gib=8)
    cloud = new_cloud(autoscaler="generic", provision_timeout=0.2)
    cloud.launch(request_of("fits"))
    (waiting,) = cloud.launch(request_of("waits", kind="2CPU--4GB"))
    assert waiting.state is InstanceState.PENDING

    def ending() -> bool:
        (one,) = cloud.describe(kube.context, [waiting.id])
        return one.state is InstanceState.ENDING and one.gone_reason is Reason.NO_CAPACITY

    wait_until(ending, "the end of the wait", 10)
    kube.add_event(waiting.id, "TriggeredScaleUp", "cluster-autoscaler")
    assert not ending()


def test_container__that_does_not_start_fails_the_task_after_minutes_and_stays_listed(
    kube: FakeKube, request_of: RequestOf
) -> None:
    clock = ManualClock()
    cloud = KubernetesCloud(
        KubernetesSettings.from_mapping({"kubeconfig": str(kube.kubeconfig), "image": "slow/runtime"}), clock
    )
    kube.add_node("n1")
    kube.faults.images["slow/runtime"] = ("CreateContainerError", "context deadline exceeded")
    (launched,) = cloud.launch(request_of())

    def described() -> tuple[InstanceState, Reason | None]:
        (one,) = cloud.describe(kube.context, [launched.id])
        return one.state, one.gone_reason

    assert len(kube.pods()) == 1
    assert described() == (InstanceState.PENDING, None)
    clock.advance(START_RETRIES_S - 1.0)
    assert described() == (InstanceState.PENDING, None), "its kubelet tries again"
    clock.advance(1.0)
    assert described() == (InstanceState.GONE, Reason.PRECHECKS_FAILED)
    (listed,) = cloud.list_owned("ctl")
    assert listed.state is InstanceState.ENDING, "the object exists, and may start later"


def test_node_that_has_left__takes_its_offer_with_it(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    gpu, product = {"nvidia.com/gpu": 8}, "nvidia.com/gpu.product"
    kube.add_node("t4", cpu=96, memory_gib=1000, resources=gpu, labels={product: "Tesla-T4"})
    kube.add_node("h100", cpu=96, memory_gib=1000, resources=gpu, labels={product: "NVIDIA-H100-80GB-HBM3"})
    cloud = new_cloud(autoscaler="generic")
    offer = next(one for one in cloud.offers() if one.accelerators == ("H100", 8.0))
    request = request_of(kind=offer.instance_type, accelerators=offer.accelerators, num_nodes=2)
    kube.faults.lost_answers["POST pods"] = 1
    with pytest.raises(ConnectionError):
        cloud.launch(request)
    kube.remove_node("h100")
    for _ in range(2):
        with pytest.raises(CloudRejected, match=r"no node in .* has .*H100:8 \(on-demand\)") as rejected:
            cloud.launch(request)
        assert cloud.classify(rejected.value).kind is FaultKind.AVOID_ZONE
        assert not kube.pods(), "without H100 nodes, nothing would keep the pods off the T4"


def test_rights__without_nodes_offers_come_from_the_configuration(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf
) -> None:
    kube.add_node("n1")
    kube.faults.forbid |= {"list nodes", "watch nodes", "get nodes"}
    cloud = new_cloud(node_types=[{"vcpus": 4, "memory_gib": 16, "zones": ["zone-1"]}])
    assert {one.instance_type for one in cloud.offers()} >= {"4CPU--16GB", "1CPU--2GB"}
    assert "cannot be listed" in " ".join(cloud.notes())
    (launched,) = cloud.launch(request_of())
    assert cloud.describe(kube.context, [launched.id])[0].state is InstanceState.RUNNING


@pytest.mark.skipif(not is_available(), reason="kubernetes-validate is not installed")
def test_objects__are_valid_in_old_and_new_versions(kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf) -> None:
    kube.add_node("n1", labels={"karpenter.sh/capacity-type": "spot"})
    kube.faults.restricted = True
    cloud = new_cloud(kueue={"local_queue_name": "q"}, agent_image="tools/python", set_pod_resource_limits=1.5)
    cloud.launch(request_of(num_nodes=2, market=Market.SPOT, disk_gib=10, labels={"team": "a b"}))
    for kind, objects in (("Pod", kube.pods()), ("Secret", kube.secrets())):
        for one in objects:
            one["metadata"].pop("managedFields", None)
            assert schema_errors({"apiVersion": "v1", "kind": kind, **one}, VERSIONS) == ""
