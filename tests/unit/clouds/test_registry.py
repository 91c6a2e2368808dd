"""Which clouds there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import Cloud
from perdure.controller.clouds.registry import enabled_clouds
from perdure.recovery.market import FaultKind


def test_the_local_cloud_is_there_always(tmp_path: Path) -> None:
    clouds: dict[str, Cloud] = enabled_clouds({}, tmp_path, ManualClock())
    assert clouds["local"].unusable() is None
    assert all(name == cloud.name for name, cloud in clouds.items())


def test_its_section_is_read(tmp_path: Path) -> None:
    clouds = enabled_clouds({"local": {"accelerators": {"V100": 2}}}, tmp_path, ManualClock())
    assert ("V100", 2.0) in {offer.accelerators for offer in clouds["local"].offers()}
    with pytest.raises(ValueError, match=r"local\.accelerators\.V100"):
        enabled_clouds({"local": {"accelerators": {"V100": "two"}}}, tmp_path, ManualClock())


@pytest.mark.parametrize("name", ["aws", "gcp", "azure", "kubernetes"])
def test_a_cloud_that_is_not_built_says_so(tmp_path: Path, name: str) -> None:
    cloud = enabled_clouds({}, tmp_path, ManualClock())[name]
    why = cloud.unusable()
    assert why is not None
    assert name in why
    assert not cloud.offers()
    assert not cloud.list_owned("c")
    with pytest.raises(NotImplementedError) as caught:
        cloud.describe("r", ["i"])
    fault = cloud.classify(caught.value)
    assert fault.kind is FaultKind.AVOID_CLOUD
    assert fault.whole_cloud


def test_naming_the_clouds_loads_no_sdk_and_touches_no_disk(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from perdure.controller.clock import ManualClock;"
        "from perdure.controller.clouds.registry import enabled_clouds;"
        f"enabled_clouds({{}}, pathlib.Path({str(tmp_path)!r}), ManualClock());"
        "print([m for m in ('boto3', 'google.cloud', 'azure', 'kubernetes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir())
