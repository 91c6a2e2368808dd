"""The parameters of RunInstances that EC2 limits."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.aws.machines.launch_request import (
    DISK_TIERS,
    Image,
    disk_price_per_hour,
    run_instances,
)
from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.recovery.market.view import Market, Offer

IMAGE = Image("ami-0123456789abcdef0", "/dev/sda1", 8)


def disk(tier: str | None, gib: int, gpus: tuple[str, float] | None = None) -> dict[str, object]:
    offer = Offer("aws", "us-east-1", "us-east-1a", "m6i.large", Market.SPOT, 0.1, 0.2, 2, 8, gpus)
    owner = Owner("controller", 1, 0, 1, "token")
    bootstrap = Bootstrap("https://controller.example.com", "secret", {"agent": "ab" * 32})
    request = LaunchRequest(owner, offer, 1, bootstrap, "name", disk_gib=gib, disk_tier=tier)
    (mapping,) = run_instances(request, IMAGE)["BlockDeviceMappings"]
    return dict(mapping["Ebs"])


@pytest.mark.parametrize("tier", DISK_TIERS)
@pytest.mark.parametrize("gib", [8, 10, 20, 31, 32, 100, 500])
def test_disk__keeps_ebss_limits(tier: str | None, gib: int) -> None:
    volume = disk(tier, gib)
    assert volume["VolumeSize"] == gib
    iops, throughput = volume.get("Iops"), volume.get("Throughput")
    if volume["VolumeType"] == "gp3" and iops is not None:
        assert 3000 <= iops <= max(3000, 500 * gib)  # type: ignore[operator]
    if volume["VolumeType"] == "io2":
        assert 100 <= iops <= max(100, 500 * gib)  # type: ignore[operator]
    if throughput is not None:
        assert throughput <= iops / 4  # type: ignore[operator]


def test_disk__is_as_fast_as_its_tier_if_it_is_large_enough() -> None:
    assert (disk("best", 32)["Iops"], disk("best", 32)["Throughput"]) == (16000, 1000)
    assert (disk("best", 10)["Iops"], disk("best", 10)["Throughput"]) == (5000, 1000)
    assert disk("ultra", 10)["Iops"] == 5000


def test_disk__of_a_machine_with_gpus_writes_a_checkpoint_within_a_notice() -> None:
    assert disk(None, 100, ("A100", 8.0))["Throughput"] == 500
    assert "Throughput" not in disk(None, 100)
    assert "Throughput" not in disk("medium", 100, ("A100", 8.0)), "the task has chosen"
    fast, usual = (disk_price_per_hour(100, None, has_gpus=has_gpus) for has_gpus in (True, False))
    assert fast - usual == pytest.approx(375 * 0.04 / 730)
