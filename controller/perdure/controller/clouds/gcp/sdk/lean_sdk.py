"""Imports the services of google-cloud-compute that are used, without the hundred others.

The package's own `__init__` imports every service, which takes 40 MiB of memory and most of a second. Its submodules do
not need the others. So during the import of one, an empty module replaces the package. It is removed afterwards, and a
later import of the package loads all of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGE = "google.cloud.compute_v1"
# Client class → its submodule.
SERVICES = {
    "InstancesClient": "instances",
    "RegionsClient": "regions",
    "ZoneOperationsClient": "zone_operations",
    "ZonesClient": "zones",
}


def client_class(name: str) -> Any:
    """The class of that name in google-cloud-compute. Not thread-safe. Raises ImportError."""
    if PACKAGE in sys.modules:  # the whole package is imported already
        return getattr(sys.modules[PACKAGE], name)
    return getattr(_import_alone(f"{PACKAGE}.services.{SERVICES[name]}"), name)


def _import_alone(module: str) -> ModuleType:
    """Import the submodule without running the `__init__` of its parent packages."""
    placeholders = [_placeholder(name) for name in (PACKAGE, f"{PACKAGE}.services")]
    try:
        return importlib.import_module(module)
    finally:
        for placeholder in placeholders:
            del sys.modules[placeholder.__name__]


def _placeholder(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)  # has the package's path, but is not executed
    sys.modules[name] = module
    return module
