"""The SDK's services that are used, and none beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perdure.controller.clouds.gcp.services import SERVICES

ALONE = """
import sys
from perdure.controller.clouds.gcp.services import SERVICES, client_class
made = {name: client_class(name) for name in SERVICES}
loaded = {m.split(".")[4] for m in sys.modules if m.startswith("google.cloud.compute_v1.services.")}
assert loaded == set(SERVICES.values()), loaded
assert "google.cloud.compute_v1" not in sys.modules
from google.cloud import compute_v1
assert all(getattr(compute_v1, name) is one for name, one in made.items())
assert compute_v1.DisksClient and client_class("InstancesClient") is compute_v1.InstancesClient
"""


def test_only_what_is_used_is_loaded_and_the_rest_can_be_had_later() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_the_package_has_each_under_the_same_name(name: str) -> None:
    from google.cloud import compute_v1

    assert hasattr(compute_v1, name)
