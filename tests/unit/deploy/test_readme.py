"""The configurations that README.md shows can be used as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.registry import enabled_clouds
from perdure.controller.settings import read_settings
from perdure.controller.storage.configured import stores_of

README = (Path(__file__).parents[3] / "README.md").read_text()
BLOCKS = [textwrap.dedent(block) for block in re.findall(r" *```yaml\n(.*?)```", README, flags=re.DOTALL)]
CONFIGURATIONS = [block for block in BLOCKS if re.match(r"(listen|local|aws|gcp|azure):", block)]


def test_there_is_one_for_each_cloud() -> None:
    assert {name for name in ("local", "aws", "gcp", "azure") if any(f"{name}:" in one for one in CONFIGURATIONS)} == {
        *("local", "aws", "gcp", "azure")
    }


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_a_configuration_is_taken_as_it_stands(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    found = read_settings(tmp_path, {})
    clouds = enabled_clouds(found.sections, tmp_path, ManualClock(), local_home=found.local_home)
    assert all("not set up" not in (clouds[name].unusable() or "") for name in clouds if name in found.sections)
    stores_of(found, buckets_on_node=None)
