"""The project around Compute Engine: permissions of the caller, regions, and quotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.fakes.gce.discovery import Call, Invalid
from support.fakes.gce.faults import Faults
from support.fakes.gce.fleet import PROJECT
from support.fakes.gce.operations import LINKS

GPUS = ("T4", "L4", "P4", "V100", "P100", "A100", "A100_80GB")
METRICS = ("CPUS", "IN_USE_ADDRESSES", "SSD_TOTAL_GB", *(f"NVIDIA_{gpu}_GPUS" for gpu in GPUS))
SPOT_METRICS = ("PREEMPTIBLE_CPUS", *(f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS" for gpu in (*GPUS, "H100")))
LIMIT = 24.0


def tested_permissions(call: Call, faults: Faults) -> dict[str, Any]:
    """Return the permissions of the request that the caller has. Raises Invalid."""
    if call.parameters["resource"] != f"projects/{PROJECT}":
        raise Invalid(403, "forbidden", "The caller does not have permission")
    if len(call.body["permissions"]) > 100:
        raise Invalid(400, "badRequest", "Too many permissions")
    return {"permissions": [one for one in call.body["permissions"] if one not in faults.forbid]}


def regions(names: Sequence[str], faults: Faults) -> list[dict[str, Any]]:
    """The regions, as `regions.list` returns them."""
    return [
        {
            "kind": "compute#region",
            "name": name,
            "status": "UP",
            "selfLink": f"{LINKS}/projects/{PROJECT}/regions/{name}",
            "quotas": [
                {
                    "metric": metric,
                    "limit": float(faults.quotas.get((name, metric), LIMIT)),
                    "usage": 8.0 if n == 0 else 0.0,
                }
                for n, metric in enumerate((*METRICS, *SPOT_METRICS))
            ],
        }
        for name in names
    ]
