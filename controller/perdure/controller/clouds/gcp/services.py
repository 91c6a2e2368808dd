"""The few services of google-cloud-compute that are used, without the hundred others.

The package's own `__init__` imports every service: 40 MiB more of memory, and most of a second. Its submodules need
none of that, so while one is imported a bare module stands in for the package. Afterwards that is gone again: whoever
imports the package later gets all of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGE = "google.cloud.compute_v1"
# What is used → the submodule that has it.
SERVICES = {
    "InstancesClient": "instances",
    "RegionsClient": "regions",
    "ZoneOperationsClient": "zone_operations",
    "ZonesClient": "zones",
}


def client_class(name: str) -> Any:
    """Of that name in google-cloud-compute. Not to be called by two threads at once. Raises ImportError."""
    if PACKAGE in sys.modules:  # somebody has all of it
        return getattr(sys.modules[PACKAGE], name)
    return getattr(_alone(f"{PACKAGE}.services.{SERVICES[name]}"), name)


def _alone(module: str) -> ModuleType:
    """The submodule, imported without the packages above it running their `__init__`."""
    standing_in = [_bare(name) for name in (PACKAGE, f"{PACKAGE}.services")]
    try:
        return importlib.import_module(module)
    finally:
        for one in standing_in:
            del sys.modules[one.__name__]


def _bare(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    bare = importlib.util.module_from_spec(spec)  # with its path, and not run
    sys.modules[name] = bare
    return bare
