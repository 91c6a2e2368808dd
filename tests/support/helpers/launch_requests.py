"""A request to launch, as the controller makes them: what a test of a cloud sends, and changes a little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.controller.clouds.base.protocol import Bootstrap, InstanceState, LaunchRequest, OpenPorts, Owner
from perdure.recovery.market.view import Market, Offer


def launch_request(
    cloud: str, region: str, zone: str, kind: str, token: str = "t1", *, memory_gib: float = 4, **more: Any
) -> LaunchRequest:
    """One spot machine of a controller `ctl`; `more`: fields that are to be different, `market`, and `accelerators`."""
    market, gpus = more.pop("market", Market.SPOT), more.pop("accelerators", None)
    offer = Offer(cloud, region, zone, kind, market, 0.02, 0.08, 2, memory_gib, gpus)
    fields: dict[str, Any] = {
        "owner": Owner("ctl", job_id=7, task=0, generation=1, token=token),
        "offer": offer,
        "num_nodes": 1,
        "bootstrap": Bootstrap("http://ctl:1", "attempt-token", {"agent": "ab" * 32}),
        "name": "job",
    }
    return LaunchRequest(**{**fields, **more})


def open_and_close(cloud: Any, request: LaunchRequest) -> None:
    """Launch the machine of a request with a port, and another with other ports; then end both, and close the ports."""
    region, name, ids = request.offer.region, "perdure-ctl-cluster-1", []
    for number, ranges in enumerate((((80, 80),), ((90, 99), (22, 22)))):
        owner = replace(request.owner, token=f"{request.owner.token}-{number}")
        (machine,) = cloud.launch(replace(request, owner=owner, open_ports=OpenPorts(name, ranges)))
        ids.append(machine.id)
    cloud.public_addresses(region, ids)
    cloud.terminate(region, ids)
    cloud.close_ports(region, name)


def stop_and_start(cloud: Any, request: LaunchRequest) -> None:
    """Launch the machine of an on-demand request, stop it, start it for another attempt, and terminate it."""
    assert request.offer.market is Market.ON_DEMAND
    region, (machine,) = request.offer.region, cloud.launch(replace(request, keeps_disks=True))
    cloud.stop(region, [machine.id])
    assert cloud.describe(region, [machine.id])[0].state is InstanceState.STOPPED
    cloud.start(replace(request, owner=replace(request.owner, token=f"{request.owner.token}-again")), [machine.id])
    cloud.terminate(region, [machine.id])
