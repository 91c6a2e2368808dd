"""Two clusters as contexts of one kubeconfig: one that does not answer holds up nothing of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.controller.clouds.base.partial_listing import PartialListing, list_known
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.recovery.market.unavailable import FaultKind
from support.fakes.kube import FakeKube
from support.fakes.kube.clusters import join_kubeconfigs


@pytest.fixture
def away(kube: FakeKube, tmp_path: Path) -> Iterator[FakeKube]:
    """A second cluster, which a test closes."""
    with FakeKube(context="away") as second:
        kube.add_node("n1")
        second.add_node("n2")
        join_kubeconfigs(tmp_path / "both", [kube, second])
        yield second


def test_listing__is_that_of_the_contexts_that_answer(
    kube: FakeKube,
    away: FakeKube,
    new_cloud: Callable[..., KubernetesCloud],
    request_of: Callable[..., LaunchRequest],
    tmp_path: Path,
) -> None:
    cloud = new_cloud(kubeconfig=str(tmp_path / "both"), allowed_contexts="all")
    (machine,) = cloud.launch(request_of())
    away.faults.answers["GET pods"] = [(503, "the server is overloaded")] * 20
    with pytest.raises(PartialListing, match=r"away cannot be listed: .*overloaded") as caught:
        cloud.list_owned("ctl")
    assert [one.id for one in caught.value.instances] == [machine.id]
    assert list(caught.value.failures) == ["away"]
    assert cloud.classify(caught.value).kind is FaultKind.AMBIGUOUS
    away.faults.answers.clear()
    listed, failures = list_known(cloud, "ctl")
    assert ([one.id for one in listed], failures) == ([machine.id], {})


def test_listing__fails_if_no_context_answers(kube: FakeKube, new_cloud: Callable[..., KubernetesCloud]) -> None:
    kube.faults.forbid.add("list pods")
    with pytest.raises(Exception, match="pods") as caught:
        new_cloud().list_owned("ctl")
    assert not isinstance(caught.value, PartialListing)


def test_context__that_is_added_to_the_kubeconfig_gets_its_watch_and_no_other_gets_a_second(
    kube: FakeKube, away: FakeKube, new_cloud: Callable[..., KubernetesCloud], tmp_path: Path
) -> None:
    path = tmp_path / "growing"
    join_kubeconfigs(path, [kube])
    cloud = new_cloud(kubeconfig=str(path), allowed_contexts=["fake", "away"])
    (first,) = cloud.notice_queues()
    path.write_text("contexts: {unfinished")
    assert cloud.notice_queues() == [first], "a file that is being written ends no watch"
    join_kubeconfigs(path, [kube, away])
    assert cloud.notice_queues()[0] is first
    assert [one.name for one in cloud.notice_queues()] == ["kubernetes/fake", "kubernetes/away"]
