"""The nodes that Karpenter's NodePools stand for."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.kubernetes.nodes import node_pools, offers
from perdure.controller.clouds.kubernetes.nodes.markets import MARKS
from perdure.controller.clouds.kubernetes.nodes.node_view import NO_ZONE, NodeView, view_of
from perdure.controller.clouds.kubernetes.settings import ContextSettings
from perdure.recovery.market.view import Market

TYPE, ZONE, CAPACITY = "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "karpenter.sh/capacity-type"
AWS = "karpenter.k8s.aws"


def requirement(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def pool(*requirements: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = {"spec": {"nodeClassRef": {"group": AWS, "kind": "EC2NodeClass"}, "requirements": list(requirements)}}
    status = spec.pop("status", {})
    return {"metadata": {"name": "gpu"}, "spec": {"template": template, **spec}, "status": status}


def nodes(*pools: dict[str, Any], existing: tuple[NodeView, ...] = ()) -> list[NodeView]:
    return node_pools.nodes_of(pools, existing, MARKS)


def test_pool__offers_its_types_zones_and_markets() -> None:
    offered = nodes(
        pool(
            requirement(TYPE, "p5.48xlarge", "m6i.large"),
            requirement(ZONE, "us-east-1a", "us-east-1b"),
            requirement(CAPACITY, "spot", "on-demand"),
        )
    )
    assert {(one.instance_type, one.zone, one.market) for one in offered} == {
        (kind, zone, market)
        for kind in ("p5.48xlarge", "m6i.large")
        for zone in ("us-east-1a", "us-east-1b")
        for market in Market
    }
    gpu = next(one for one in offered if one.instance_type == "p5.48xlarge")
    assert [(one.name, one.count) for one in gpu.accelerators] == [("H100", 8)]
    assert all(one.is_possible for one in offered)


def test_offers__have_the_tables_prices() -> None:
    offered = nodes(
        pool(
            requirement(TYPE, "p5.48xlarge"),
            requirement(ZONE, "us-east-1a"),
            requirement(CAPACITY, "spot", "on-demand"),
        )
    )
    listed = offers.offers_of("kubernetes", "prod", offered, ContextSettings())
    whole = {one.market: one.price_per_hour for one in listed if one.accelerators == ("H100", 8.0)}
    assert 0 < whole[Market.SPOT] < whole[Market.ON_DEMAND]


def test_pool_without_a_capacity_type__is_on_demand() -> None:
    assert {one.market for one in nodes(pool(requirement(TYPE, "m6i.large")))} == {Market.ON_DEMAND}


def test_pool_without_zones__has_those_of_the_cluster() -> None:
    existing = view_of({"metadata": {"name": "n", "labels": {ZONE: "eu-west-1c"}}}, MARKS)
    one = pool(requirement(TYPE, "m6i.large"))
    assert [node.zone for node in nodes(one, existing=(existing,))] == ["eu-west-1c"]
    assert [node.zone for node in nodes(one)] == [NO_ZONE]


@pytest.mark.parametrize(
    ("requirements", "included", "excluded"),
    [
        ([requirement(f"{AWS}/instance-family", "m6i")], "m6i.large", "p5.48xlarge"),
        ([requirement(f"{AWS}/instance-category", "p")], "p5.48xlarge", "m6i.large"),
        ([requirement(f"{AWS}/instance-category", "p", operator="NotIn")], "m6i.large", "p5.48xlarge"),
        ([requirement(f"{AWS}/instance-generation", "5", operator="Gt")], "m6i.large", "p5.48xlarge"),
        ([requirement(f"{AWS}/instance-cpu", "100", operator="Lt")], "m6i.large", "p5.48xlarge"),
        ([requirement(f"{AWS}/instance-gpu-name", operator="Exists")], "p5.48xlarge", "m6i.large"),
        ([requirement(f"{AWS}/instance-gpu-name", operator="DoesNotExist")], "m6i.large", "p5.48xlarge"),
        ([requirement(f"{AWS}/instance-gpu-name", "h100")], "p5.48xlarge", "m6i.large"),
        ([requirement("example.com/team", "a"), requirement(TYPE, "m6i.large")], "m6i.large", "p5.48xlarge"),
    ],
)
def test_requirement__selects_types(requirements: list[dict[str, Any]], included: str, excluded: str) -> None:
    offered = {one.instance_type for one in nodes(pool(*requirements))}
    assert included in offered
    assert excluded not in offered


@pytest.mark.parametrize(
    "one",
    [
        pool(requirement(TYPE, "m6i.large"), limits={"cpu": "10"}, status={"resources": {"cpu": "10"}}),
        pool(requirement(TYPE, "m6i.large"), status={"conditions": [{"type": "Ready", "status": "False"}]}),
        {
            "metadata": {"name": "azure"},
            "spec": {"template": {"spec": {"nodeClassRef": {"group": "karpenter.azure.com"}}}},
        },
    ],
    ids=["full", "not ready", "of another cloud"],
)
def test_pool_that_adds_no_node__offers_nothing(one: dict[str, Any]) -> None:
    assert not nodes(one)


def test_pool_with_a_taint_of_its_own__is_not_usable() -> None:
    tainted = pool(requirement(TYPE, "m6i.large"))
    tainted["spec"]["template"]["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    assert not offers.offers_of("kubernetes", "prod", nodes(tainted), ContextSettings())
