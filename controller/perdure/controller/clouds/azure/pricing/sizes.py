"""The sizes that are offered in addition to the built-in table, and their accelerators, by name.

Azure's list of sizes (`skus`) contains the number of GPUs of a size, but not their kind. Names: learn.microsoft.com/
azure/virtual-machines/sizes/overview. Only NVIDIA's GPUs are offered, since the images contain their driver. Sizes with
a fraction of a GPU are not offered, since no task can request one.
"""

from __future__ import annotations

import re

from perdure.controller.clouds.azure.pricing.catalog import TYPES

# (size, without "Standard_"; SkyPilot's name for its accelerators)
ACCELERATORS = (
    (r"NC\d+r?s_v3", "V100"),
    (r"ND\d+rs_v2", "V100-32GB"),
    (r"NC\d+as_T4_v3", "T4"),
    (r"NV(36|72)adm?s_A10_v5", "A10"),
    (r"NC\d+ads_A100_v4", "A100-80GB"),
    (r"ND\d+asr_v4", "A100"),
    (r"ND\d+amsr?_A100_v4", "A100-80GB"),
    (r"NC\d+adi?s_H100_v5", "H100"),
    (r"ND\d+isr?f?_H100_v5", "H100"),
    (r"ND\d+isr?f?_H200_v5", "H200"),
)
# Families without accelerators that are newer than those of the table.
PLAIN = r"[DEF]\d+a?s_v[67]"


def accelerator(size: str) -> str | None:
    """SkyPilot's name of the accelerator; None for a size without one, or an unknown size."""
    short = size.removeprefix("Standard_")
    return next((name for pattern, name in ACCELERATORS if re.fullmatch(pattern, short)), None)


def is_offered(size: str) -> bool:
    """Whether the size may be offered."""
    is_plain = re.fullmatch(PLAIN, size.removeprefix("Standard_")) is not None
    return size in TYPES or is_plain or accelerator(size) is not None
