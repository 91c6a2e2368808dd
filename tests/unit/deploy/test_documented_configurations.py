"""The configurations in README.md and in the documentation are valid."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from perdure.controller.buckets.configured import configured_stores
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.notify_config import read_notify_config
from perdure.controller.runtime.config.settings import read_settings

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = r"(listen|notify|database|limits|timeouts|nodes|retention|probes|local|aws|gcp|azure|s3|gcs|r2):"
CONFIGURATIONS = [
    pytest.param(textwrap.dedent(block), id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r" *```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL))
    if re.match(SECTIONS, textwrap.dedent(block))
]


def test_documentation__configures_every_cloud() -> None:
    texts = [str(parameters.values[0]) for parameters in CONFIGURATIONS]
    assert not [name for name in ("local", "aws", "gcp", "azure") if not any(f"{name}:" in text for text in texts)]


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_documented_configuration__is_valid(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    settings = read_settings(tmp_path, {})
    sections = {name: section for name, section in settings.sections.items() if "capacity_trace:" not in text}
    clouds = build_clouds(sections, tmp_path, ManualClock(), local_home=settings.local_home)
    assert all("not configured" not in (clouds[name].unusable() or "") for name in clouds if name in sections)
    configured_stores(settings, buckets_on_node=None)
    read_notify_config(ConfigFile.load(tmp_path), listens_on_loopback=True)
