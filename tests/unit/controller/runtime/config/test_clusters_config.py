"""The section `clusters` of config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.runtime.config.clusters_config import read_clusters_config
from perdure.controller.runtime.config.config_file import ConfigFile, SettingsError


def read(home: Path, text: str) -> bool:
    (home / "config.yaml").write_text(text)
    return read_clusters_config(ConfigFile.load(home)).keep_disks


def test_keep_disks__is_off_unless_it_is_true(tmp_path: Path) -> None:
    assert not read(tmp_path, "")
    assert not read(tmp_path, "clusters: {}")
    assert not read(tmp_path, "clusters: {keep_disks: false}")
    assert read(tmp_path, "clusters: {keep_disks: true}")


@pytest.mark.parametrize(
    ("text", "why"),
    [("{keep_disks: 1}", "true or false"), ("{keep_disk: true}", "no such setting"), ("7", "a mapping")],
)
def test_mistakes__are_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read(tmp_path, f"clusters: {text}")
