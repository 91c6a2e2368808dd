"""API servers that answer late, wrongly or not at all: still one set of pods, and no busy loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.base.partial_listing import PartialListing
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.kubernetes.api import credentials
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.recovery.market.unavailable import FaultKind
from support.fakes.kube import FakeKube
from support.fakes.kube.clusters import join_kubeconfigs

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]
MAX_TRIES = 12


@pytest.mark.parametrize(
    "answers",
    [
        {"POST pods": [(500, "etcd")] * 3},
        {"POST secrets": [(500, "etcd")] * 3, "PATCH secrets": [(500, "etcd")] * 3},
        {"POST pods": [(429, "slow down")] * 2, "PATCH pods": [(429, "slow down")]},
        {"PATCH pods": [(409, "the object has been modified")] * 2},
        {"PATCH secrets": [(409, "the object has been modified")], "GET secrets": [(503, "starting")]},
    ],
    ids=["500 ×3", "500 ×3 on the anchor", "429", "409", "409 and 503"],
)
@pytest.mark.parametrize("lost", [{}, {"POST pods": 1, "POST secrets": 1}], ids=["answered", "answered too late"])
def test_launch__through_errors_makes_one_set(
    kube: FakeKube,
    new_cloud: NewCloud,
    request_of: RequestOf,
    answers: dict[str, list[tuple[int, str]]],
    lost: dict[str, int],
) -> None:
    kube.add_node("n1", cpu=16, memory_gib=64)
    kube.faults.answers = {name: list(errors) for name, errors in answers.items()}
    kube.faults.lost_answers = dict(lost)
    cloud = new_cloud()
    for _ in range(MAX_TRIES):
        try:
            launched = cloud.launch(request_of(num_nodes=4))
            break
        except Exception as error:
            if cloud.classify(error).kind not in (FaultKind.AMBIGUOUS, FaultKind.RETRY_LATER):
                raise
    else:
        pytest.fail(f"not launched in {MAX_TRIES} tries")
    assert sorted(one.rank for one in launched) == [0, 1, 2, 3]
    assert len(kube.pods()) == 4
    assert len(kube.secrets()) == 1
    described = cloud.describe(kube.context, [one.id for one in launched])
    assert {one.state for one in described} == {InstanceState.RUNNING}, "every gate is open"


class Pauses(threading.Event):
    """Records how long a loop waits, and ends it after some waits."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.lengths: list[float] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.lengths.append(timeout or 0.0)
        if len(self.lengths) >= self._count:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(("status", "least_s"), [(500, 0.5), (503, 0.5), (429, 5.0), (403, 2.0), (None, 0.5)], ids=str)
def test_watch__of_a_server_in_trouble_makes_less_than_two_requests_a_second(
    kube: FakeKube, new_cloud: NewCloud, status: int | None, least_s: float
) -> None:
    """None: every watch breaks in the middle of an object."""
    kube.faults.retry_after_s = 5.0
    (queue,) = new_cloud().notice_queues()
    assert isinstance(queue, ContextWatch)
    pauses = queue._stopped = Pauses(10)
    if status is not None:
        kube.faults.answers["GET pods"] = [(status, "trouble")] * 100
        queue._watch_pods()
        assert min(pauses.lengths) >= least_s
        assert kube.calls["GET pods"] == 10
        assert kube.calls["GET pods"] / sum(pauses.lengths) < 2.0
        return
    kube.faults.cut_watches = 100
    kube.add_node("n1")

    def change() -> None:
        while not pauses.is_set():
            kube.set_ready("n1", "True", str(kube.store.version))
            threading.Event().wait(0.02)

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    queue._watch_nodes()
    changing.join()
    requests = kube.calls["GET nodes"] + kube.calls["WATCH nodes"]
    assert requests / sum(pauses.lengths) < 2.0


def test_plugin_that_hangs__holds_up_its_own_context_only(
    kube: FakeKube,
    new_cloud: NewCloud,
    request_of: RequestOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_TIMEOUT_S", 1.0)
    with FakeKube(context="stuck") as stuck:
        kube.add_node("n1")
        stuck.add_node("n2")
        join_kubeconfigs(tmp_path / "both", [kube, stuck])
        config = yaml.safe_load((tmp_path / "both").read_text())
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["60"]}
        config["users"][1]["user"] = {"exec": plugin | {"interactiveMode": "Never"}}
        (tmp_path / "both").write_text(yaml.safe_dump(config))
        cloud = new_cloud(kubeconfig=str(tmp_path / "both"), allowed_contexts="all")
        (machine,) = cloud.launch(request_of())
        assert {one.region for one in cloud.offers()} == {kube.context}
        with pytest.raises(PartialListing) as partial:
            cloud.list_owned("ctl")
        assert [one.id for one in partial.value.instances] == [machine.id]
        assert "sleep" in str(partial.value.failures["stuck"])
