"""Launches at the same time: gangs hold nodes all or none, and a termination survives a kill at every request."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.pods import names
from perdure.recovery.reasons import Reason
from support.fakes.kube import FakeKube
from support.helpers.timing import wait_until

NewCloud = Callable[..., KubernetesCloud]
RequestOf = Callable[..., LaunchRequest]


@pytest.mark.slow
def test_gangs_at_the_same_time__never_hold_each_others_nodes(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gangs of four, room for six, in a hundred orders of their requests."""
    for number in range(6):
        kube.add_node(f"n{number}", cpu=1.5, memory_gib=4)
    kube.faults.stop_s = 0.0
    cloud, request = new_cloud(), ApiClient.request
    for seed in range(100):
        order = random.Random(seed)

        def in_some_order(
            client: ApiClient, *arguments: object, order: random.Random = order, **named: object
        ) -> dict[str, object]:
            threading.Event().wait(order.random() * 0.002)
            return request(client, *arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(ApiClient, "request", in_some_order)
        gangs = [
            request_of(f"gang-{gang}-{seed}", num_nodes=4, owner=Owner("ctl", 10 + gang, 0, 1, f"gang-{gang}-{seed}"))
            for gang in range(2)
        ]
        with ThreadPoolExecutor(2) as pool:
            launches = [pool.submit(cloud.launch, gang) for gang in gangs]
        failures = [one.exception() for one in launches if one.exception()]
        assert len(failures) == 1, f"seed {seed}: {failures}"
        assert isinstance(failures[0], CloudRejected)
        (winner,) = [one.result() for one in launches if not one.exception()]
        assert len(winner) == len(kube.pods()) == 4
        assert not [pod for pod in kube.pods() if pod["status"]["phase"] != "Running"]
        monkeypatch.setattr(ApiClient, "request", request)
        cloud.terminate(kube.context, [one.id for one in winner])
        wait_until(lambda: not kube.pods(), "the end of the pods", 10)


class Killed(BaseException):
    """The controller dies here."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_termination__killed_at_any_request_is_completed_by_the_next_one(
    kube: FakeKube, new_cloud: NewCloud, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    kube.add_node("n1", cpu=8, memory_gib=32)
    kube.faults.stop_s = 0.0
    request = ApiClient.request
    for number in range(20):
        owner = Owner("ctl", 7, 0, number + 1, f"token-{number}")
        launched = new_cloud().launch(request_of(owner.token, num_nodes=3, owner=owner))
        ids = [one.id for one in launched]
        calls = iter(range(1000))

        def dying(client: ApiClient, *arguments: object, **named: object) -> dict[str, object]:
            is_last = next(calls) == number  # noqa: B023
            if is_last and not after:
                raise Killed
            answer = request(client, *arguments, **named)  # type: ignore[arg-type]
            if is_last:
                raise Killed
            return answer

        is_finished = False
        with monkeypatch.context() as patch:
            patch.setattr(ApiClient, "request", dying)
            try:
                new_cloud().terminate(kube.context, ids)
                is_finished = True
            except Killed:
                pass
        cloud = new_cloud()
        cloud.terminate(kube.context, ids)
        wait_until(lambda: not kube.pods(), "the end of the pods", 10)
        described = cloud.describe(kube.context, ids)
        assert [one.state for one in described] == [InstanceState.GONE] * 3
        assert {one.gone_reason for one in described} == {Reason.MACHINE_STOPPED}, "it was no preemption"
        assert not [pod for pod in kube.pods() if names.owner_of(pod) == owner]
        if is_finished:
            return
    pytest.fail("the termination never finished")
