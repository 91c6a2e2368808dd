"""Stops and starts of machines that Google refuses in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.machines import restart
from perdure.recovery.market.view import Market
from support.helpers.launch_requests import stop_and_start

Requests = Callable[..., LaunchRequest]


def test_stop__discards_local_ssds_without_which_google_refuses_it(cloud: GcpCloud, request_of: Requests) -> None:
    stop_and_start(cloud, request_of(kind="a2-ultragpu-1g", market=Market.ON_DEMAND))


def test_start__that_is_refused_at_once_for_one_machine_starts_none(
    cloud: GcpCloud, request_of: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(request_of(market=Market.ON_DEMAND, num_nodes=2), keeps_disks=True)
    ids = [one.id for one in cloud.launch(request)]
    cloud.stop("us-central1", ids)
    start = restart.start

    def refuse_second(connections: Any, id: str) -> Any:
        if id == ids[1]:
            raise CloudRejected("forbidden", "no permission")
        return start(connections, id)

    monkeypatch.setattr(restart, "start", refuse_second)
    with pytest.raises(CloudRejected):
        cloud.start(replace(request, owner=replace(request.owner, token="t2")), ids)
    states = {one.state for one in cloud.describe("us-central1", ids)}
    assert not states & {InstanceState.PENDING, InstanceState.RUNNING}
