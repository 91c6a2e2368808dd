"""Google's price list: the items that are parts of machines, and those that must not be mistaken for one."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.gcp.pricing.machine_families import FAMILIES, GPUS
from perdure.controller.clouds.gcp.pricing.retail_prices import HOURS_PER_MONTH, Item, Part, item_of, parse_items
from perdure.recovery.market.view import Market

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
CORE, RAM, GPU, SSD = Part.CORE, Part.RAM, Part.GPU, Part.SSD

# (Google's description, usage type, expected item) for every known family and GPU.
ITEMS = [
    ("A2 Instance Core running in Americas", "OnDemand", (CORE, "a2-", ON_DEMAND)),
    ("Spot Preemptible A2 Instance Core running in Americas", "Preemptible", (CORE, "a2-", SPOT)),
    ("Spot Preemptible A2 Instance Ram running in Japan", "Preemptible", (RAM, "a2-", SPOT)),
    ("A3 Instance Core running in Americas", "OnDemand", (CORE, "a3-highgpu-", ON_DEMAND)),
    ("A3 Instance Ram running in Iowa", "OnDemand", (RAM, "a3-highgpu-", ON_DEMAND)),
    ("A3Plus Instance Core running in Americas", "OnDemand", (CORE, "a3-megagpu-", ON_DEMAND)),
    ("Spot Preemptible A3Plus Instance Ram running in Tokyo", "Preemptible", (RAM, "a3-megagpu-", SPOT)),
    ("A3Ultra Instance Core running in Americas", "OnDemand", (CORE, "a3-ultragpu-", ON_DEMAND)),
    ("Compute optimized Core running in Americas", "OnDemand", (CORE, "c2-", ON_DEMAND)),
    ("Compute optimized Instance Ram running in Mexico", "OnDemand", (RAM, "c2-", ON_DEMAND)),
    ("Spot Preemptible Compute optimized Core running in Japan", "Preemptible", (CORE, "c2-", SPOT)),
    ("Spot Preemptible Compute optimized Instance Core running in Johannesburg", "Preemptible", (CORE, "c2-", SPOT)),
    ("Preemptible Compute optimized Ram running in Montreal", "Preemptible", (RAM, "c2-", SPOT)),
    ("C2D AMD Instance Core running in Americas", "OnDemand", (CORE, "c2d-", ON_DEMAND)),
    ("C3 Instance Ram running in Frankfurt", "OnDemand", (RAM, "c3-", ON_DEMAND)),
    ("Spot Preemptible C3D Instance Core running in Taiwan", "Preemptible", (CORE, "c3d-", SPOT)),
    ("C4 Instance Core running in Americas", "OnDemand", (CORE, "c4-", ON_DEMAND)),
    ("C4D Instance Ram running in Tokyo", "OnDemand", (RAM, "c4d-", ON_DEMAND)),
    ("E2 Instance Core running in Frankfurt", "OnDemand", (CORE, "e2-", ON_DEMAND)),
    ("Spot Preemptible E2 Instance Ram running in EMEA", "Preemptible", (RAM, "e2-", SPOT)),
    ("G2 Instance Core running in Northern Virginia", "OnDemand", (CORE, "g2-", ON_DEMAND)),
    ("Spot Preemptible G2 Instance Ram running in Las Vegas", "Preemptible", (RAM, "g2-", SPOT)),
    ("N1 Predefined Instance Core running in Americas", "OnDemand", (CORE, "n1-", ON_DEMAND)),
    ("N1 Predefined Instance Ram running in Zurich", "OnDemand", (RAM, "n1-", ON_DEMAND)),
    ("Spot Preemptible N1 Predefined Instance Core running in EMEA", "Preemptible", (CORE, "n1-", SPOT)),
    ("N2 Instance Core running in Americas", "OnDemand", (CORE, "n2-", ON_DEMAND)),
    ("Spot Preemptible N2 Instance Core running in Americas", "Preemptible", (CORE, "n2-", SPOT)),
    ("N2D AMD Instance Ram running in Netherlands", "OnDemand", (RAM, "n2d-", ON_DEMAND)),
    ("N4 Instance Core running in Americas", "OnDemand", (CORE, "n4-", ON_DEMAND)),
    ("T2D AMD Instance Core running in Americas", "OnDemand", (CORE, "t2d-", ON_DEMAND)),
    ("Nvidia Tesla T4 GPU running in Americas", "OnDemand", (GPU, "nvidia-tesla-t4", ON_DEMAND)),
    (
        "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas",
        "Preemptible",
        (GPU, "nvidia-tesla-t4", SPOT),
    ),
    ("Nvidia Tesla P4 GPU running in Americas", "OnDemand", (GPU, "nvidia-tesla-p4", ON_DEMAND)),
    ("Nvidia Tesla P100 GPU running in Americas", "OnDemand", (GPU, "nvidia-tesla-p100", ON_DEMAND)),
    ("Nvidia Tesla V100 GPU running in Americas", "OnDemand", (GPU, "nvidia-tesla-v100", ON_DEMAND)),
    ("Nvidia L4 GPU running in Salt Lake City", "OnDemand", (GPU, "nvidia-l4", ON_DEMAND)),
    ("Nvidia Tesla A100 GPU running in Americas", "OnDemand", (GPU, "nvidia-tesla-a100", ON_DEMAND)),
    ("Nvidia Tesla A100 80GB GPU running in Netherlands", "OnDemand", (GPU, "nvidia-a100-80gb", ON_DEMAND)),
    ("Nvidia H100 80GB GPU running in Americas", "OnDemand", (GPU, "nvidia-h100-80gb", ON_DEMAND)),
    ("Nvidia H100 80GB Plus GPU running in Americas", "OnDemand", (GPU, "nvidia-h100-mega-80gb", ON_DEMAND)),
    (
        "Nvidia H100 80GB Mega GPU attached to Spot Preemptible VMs running in Tokyo",
        "Preemptible",
        (GPU, "nvidia-h100-mega-80gb", SPOT),
    ),
    ("H200 141GB GPU running in Netherlands", "OnDemand", (GPU, "nvidia-h200-141gb", ON_DEMAND)),
    ("A4 Nvidia B200 (1 gpu slice) running in Americas", "OnDemand", (GPU, "nvidia-b200", ON_DEMAND)),
    # this is how Google lists it
    ("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "OnDemand", (GPU, "nvidia-b200", SPOT)),
    ("SSD backed Local Storage", "OnDemand", (SSD, "", ON_DEMAND)),
    ("SSD backed Local Storage in Paris", "OnDemand", (SSD, "", ON_DEMAND)),
    ("SSD backed Local Storage attached to Spot Preemptible VMs", "Preemptible", (SSD, "", SPOT)),
    ("SSD backed Local Storage attached to Spot Preemptible VMs in Paris", "OnDemand", (SSD, "", SPOT)),
]
# Other terms of sale, and items that are not parts of machines.
OTHERS = [
    ("Commitment v1: N2 Cpu in Americas for 1 Year", "Commit1Yr"),
    ("Commitment: Compute optimized Core running in Americas for 1 Year", "Commit1Yr"),
    ("Commitment v1: H200 141GB GPU running in Americas for 3 Years", "Commit3Yr"),
    ("Commitment v1: N4A Core in Johannesburg for 5 Years", "Commit"),
    ("N2 Custom Instance Core running in Americas", "OnDemand"),
    ("Custom Instance Core running in Americas", "OnDemand"),
    ("N2D AMD Custom Extended Instance Ram running in Paris", "OnDemand"),
    ("Spot Preemptible E2 Custom Instance Ram running in Tokyo", "Preemptible"),
    ("C3 Sole Tenancy Instance Core running in Americas", "OnDemand"),
    ("Sole Tenancy Premium for C4 Sole Tenancy Instance Core running in Americas", "OnDemand"),
    ("Nvidia Tesla T4 GPU attached to Sole Tenancy VMs running in Americas", "OnDemand"),
    ("DWS Defined Duration A3 Core running in Americas", "OnDemand"),
    ("Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Americas", "OnDemand"),
    ("Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode", "OnDemand"),
    ("Nvidia L4 GPU in Americas in Calendar Mode", "OnDemand"),
    ("Reserved A2 Ram in Netherlands", "OnDemand"),
    ("Memory-optimized Instance Core running in Northern Virginia", "OnDemand"),
    ("M3 Memory-optimized Instance Ram running in Tokyo", "OnDemand"),
    ("Memory Optimized Upgrade Premium for Memory-optimized Instance Core running in Singapore", "OnDemand"),
    ("C4A Arm Instance Core running in Northern Virginia", "OnDemand"),
    ("Nvidia Tesla K80 GPU running in Americas", "OnDemand"),
    ("Nvidia Tesla T4 Virtual Workstation GPU running in Americas", "OnDemand"),
    ("Small Instance with 1 VCPU running in Americas", "OnDemand"),
    ("C4 Instance Local SSD running in Frankfurt", "OnDemand"),
    ("Balanced PD Capacity in Paris", "OnDemand"),
    ("Licensing Fee for Windows Server 2012 BYOL (CPU cost)", "OnDemand"),
    ("TpuV5e running in Americas", "OnDemand"),
    ("", ""),
]


@pytest.mark.parametrize(("description", "usage_type", "item"), ITEMS, ids=[one[0] for one in ITEMS])
def test_item_of__recognizes_descriptions(description: str, usage_type: str, item: tuple[Part, str, Market]) -> None:
    assert item_of(description, usage_type) == Item(*item)


def test_item_of__is_tested_for_every_family_and_gpu() -> None:
    prices = {of for _, _, (_, of, _) in ITEMS}
    assert {family.prefix for family in FAMILIES if family.words} <= prices
    assert set(GPUS) <= prices


@pytest.mark.parametrize(("description", "usage_type"), OTHERS)
def test_item_of__ignores_other_terms_of_sale(description: str, usage_type: str) -> None:
    assert item_of(description, usage_type) is None


def sku(description: str, usd: tuple[int, int], **more: Any) -> dict[str, Any]:
    """`usd`: units and billionths."""
    price = {"units": str(usd[0]), "nanos": usd[1], "currencyCode": more.get("currency", "USD")}
    if usd[0] == 0:
        del price["units"]  # Google omits zeros
    expression = {"usageUnit": more.get("unit", "h"), "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": more.get("usage", "OnDemand")},
        "serviceRegions": more.get("regions", ["us-central1"]),
        "pricingInfo": [*more.get("before", []), {"pricingExpression": expression}],
    }


N2_CORE, L4 = Item(CORE, "n2-", ON_DEMAND), Item(GPU, "nvidia-l4", ON_DEMAND)
N2, RAM_OF_N2 = "N2 Instance Core running in Americas", "N2 Instance Ram running in Americas"


def test_parse_items__uses_the_current_price_in_each_region() -> None:
    old = sku(N2, (0, 40_000_000))["pricingInfo"]
    prices = parse_items(
        [
            sku(N2, (0, 31_611_000), regions=["us-central1", "us-east1"], before=old),
            sku("N2 Instance Core running in Paris", (0, 36_700_000), regions=["europe-west9"]),
            sku("Nvidia L4 GPU running in Americas", (1, 560_040_000)),
        ]
    )
    assert {region: rates[N2_CORE] for region, rates in prices.items()} == {
        "us-central1": 0.031611,
        "us-east1": 0.031611,
        "europe-west9": 0.0367,
    }
    assert prices["us-central1"][L4] == pytest.approx(1.56004)


def test_parse_items__converts_units() -> None:
    ram, disk = Item(RAM, "n2-", ON_DEMAND), Item(SSD, "", ON_DEMAND)
    prices = parse_items(
        [
            sku(RAM_OF_N2, (0, 4_237_000), unit="GiBy.h"),
            sku("SSD backed Local Storage", (0, 80_000_000), unit="GiBy.mo"),
        ]
    )["us-central1"]
    assert prices == {ram: 0.004237, disk: pytest.approx(0.08 / HOURS_PER_MONTH)}


@pytest.mark.parametrize(
    "description",
    [
        sku(N2, (0, 0)),  # a placeholder
        sku(N2, (0, 31_611_000), unit="mo"),
        sku(RAM_OF_N2, (0, 4_237_000), unit="h"),
        sku(N2, (0, 31_611_000), currency="EUR"),
        sku(N2, (0, 31_611_000), regions=[]),
        {**sku(N2, (0, 31_611_000)), "pricingInfo": []},
        {"description": N2},
        {},
    ],
    ids=repr,
)
def test_parse_items__skips_items_without_a_price(description: dict[str, Any]) -> None:
    assert parse_items([description]) == {}


def test_parse_items__uses_the_higher_of_two_prices() -> None:
    two = [sku(N2, (0, 31_611_000)), sku(N2, (0, 32_000_000))]
    assert parse_items(two) == parse_items(two[::-1]) == {"us-central1": {N2_CORE: 0.032}}
