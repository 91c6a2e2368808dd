"""The sizes of the fake Azure: those of the controller's table, and others, as Azure describes them.

Names and figures: learn.microsoft.com/azure/virtual-machines/sizes/overview. Prices of the others are invented.
"""

from __future__ import annotations

from perdure.controller.clouds.azure.pricing.catalog import HOST_TYPES, TYPES
from perdure.controller.clouds.pricing.region_catalog import InstanceType

# Sizes that the table lacks and a task may request.
LACKING = {
    kind.name: kind
    for kind in (
        InstanceType("Standard_NC6s_v3", 6, 112, 3.0, ("V100", 1.0)),
        InstanceType("Standard_ND40rs_v2", 40, 672, 22.0, ("V100-32GB", 8.0)),
        InstanceType("Standard_D8as_v6", 8, 32, 0.4),
    )
}
# Sizes that the controller cannot use → the reason.
UNFIT = {
    "Standard_D4ps_v6": {"vCPUs": "4", "MemoryGB": "16", "CpuArchitectureType": "Arm64"},
    "Standard_NV6ads_A10_v5": {"vCPUs": "6", "MemoryGB": "55", "GPUs": "1"},  # a sixth of a GPU
    "Standard_ND96isr_MI300X_v5": {"vCPUs": "96", "MemoryGB": "1850", "GPUs": "8"},  # GPUs of AMD
    "Standard_D2s_v6": {"MemoryGB": "8"},  # its description is incomplete
    "Standard_D4s_v6": {"vCPUs": "4", "MemoryGB": "many"},
    "Standard_D16s_v6": {"vCPUs": "16", "MemoryGB": "64", "HyperVGenerations": "V1"},
    "Standard_M8ms": {"vCPUs": "8", "MemoryGB": "218.75"},
}
SIZES = {**TYPES, **LACKING}
LAUNCHED = {**SIZES, **HOST_TYPES}  # controllers have sizes of their own


def capabilities(size: str) -> dict[str, str]:
    """The capabilities of a size. Azure returns the values as text."""
    kind = LAUNCHED.get(size)
    specific = UNFIT.get(size, {})
    if kind is not None:
        specific = {"vCPUs": f"{kind.vcpus:g}", "vCPUsAvailable": f"{kind.vcpus:g}", "MemoryGB": f"{kind.memory_gib:g}"}
        specific |= {"GPUs": f"{kind.accelerators[1]:g}"} if kind.accelerators else {}
    common = {"LowPriorityCapable": "True", "CpuArchitectureType": "x64", "HyperVGenerations": "V1,V2"}
    return {**common, **specific}
