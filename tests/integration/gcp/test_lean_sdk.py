"""Only the SDK services in use are loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perdure.controller.clouds.gcp.sdk.lean_sdk import SERVICES

pytestmark = pytest.mark.long

ALONE = """
import sys
from perdure.controller.clouds.gcp.sdk.lean_sdk import SERVICES, client_class
made = {name: client_class(name) for name in SERVICES}
loaded = {m.split(".")[4] for m in sys.modules if m.startswith("google.cloud.compute_v1.services.")}
assert loaded == set(SERVICES.values()), loaded
assert "google.cloud.compute_v1" not in sys.modules
from google.cloud import compute_v1
assert all(getattr(compute_v1, name) is one for name, one in made.items())
assert compute_v1.DisksClient and client_class("InstancesClient") is compute_v1.InstancesClient
"""


def test_lean_sdk__loads_only_used_services_and_allows_others_later() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_lean_sdk__services_exist_in_the_package(name: str) -> None:
    from google.cloud import compute_v1

    assert hasattr(compute_v1, name)
