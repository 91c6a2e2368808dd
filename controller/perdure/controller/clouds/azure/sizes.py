"""Which of Azure's sizes are offered besides those of the table, and what accelerators they have: by their names.

Azure's list of sizes (`skus`) tells how many GPUs a size has, and not which. Names are those of
learn.microsoft.com/azure/virtual-machines/sizes/overview. Only NVIDIA's: their driver is what images bring. Sizes with
a part of a GPU are left out: a task could ask for none of them.
"""

from __future__ import annotations

import re

from perdure.controller.clouds.azure.catalog import TYPES

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
# Without accelerators: what comes after the families of the table.
PLAIN = r"[DEF]\d+a?s_v[67]"


def accelerator(size: str) -> str | None:
    """SkyPilot's name; None for a size that has none, or one that is not known here."""
    short = size.removeprefix("Standard_")
    return next((name for pattern, name in ACCELERATORS if re.fullmatch(pattern, short)), None)


def is_offered(size: str) -> bool:
    """Whether it is offered where Azure tells that it is sold, and what it has."""
    is_plain = re.fullmatch(PLAIN, size.removeprefix("Standard_")) is not None
    return size in TYPES or is_plain or accelerator(size) is not None
