"""Warnings about launches, by cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.machines import launch_request as aws
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.azure.machines import launch_request as azure
from perdure.controller.clouds.base.launch_warnings import WarnsOfLaunches
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.machines import launch_request as gcp

WHOLE = ("H100", 8.0)
BEST = {"network_tier": "best"}


@pytest.mark.parametrize("cloud", [AwsCloud, AzureCloud, GcpCloud])
def test_clouds__warn_of_launches(cloud: type) -> None:
    assert isinstance(cloud.__new__(cloud), WarnsOfLaunches)


@pytest.mark.parametrize(
    ("warnings", "options", "accelerators", "num_nodes", "expected"),
    [
        (aws.warnings, {}, WHOLE, 2, ["on aws, the 2 nodes with 8 x H100 talk TCP", "network_tier: best"]),
        (aws.warnings, BEST, WHOLE, 2, []),
        (aws.warnings, {}, WHOLE, 1, []),
        (aws.warnings, {}, ("H100", 1.0), 4, []),
        (aws.warnings, {}, ("T4", 8.0), 4, []),
        (aws.warnings, {}, None, 4, []),
        (gcp.warnings, {}, ("H100-MEGA", 8.0), 4, ["on gcp, the 4 nodes", "without GPUDirect"]),
        (gcp.warnings, BEST, WHOLE, 4, ["on gcp"]),
        (gcp.warnings, {"labels": {"team": "vision", "Cost-Center": "1"}}, None, 1, ["Cost-Center is left out on gcp"]),
        (gcp.warnings, {"labels": None}, None, 1, []),
        (azure.warnings, {}, WHOLE, 2, ["on azure, the 2 nodes", "not InfiniBand"]),
        (azure.warnings, BEST, None, 1, ["network_tier: best has no effect on azure"]),
        (azure.warnings, {"network_tier": "standard"}, None, 1, []),
    ],
)
def test_warnings__of_a_launch(
    warnings: Callable[..., list[str]],
    options: dict[str, Any],
    accelerators: tuple[str, float] | None,
    num_nodes: int,
    expected: list[str],
) -> None:
    text = "\n".join(warnings(options, accelerators, num_nodes))
    assert bool(text) == bool(expected)
    assert all(part in text for part in expected)
