"""The reference of config.yaml and the readers of its sections agree on the keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.buckets.configured import configured_stores
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.maintenance.backup_schedule import read_backup_config
from perdure.controller.maintenance.offer_probes import read_probe_config
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.acme_config import read_acme_config
from perdure.controller.runtime.config.clusters_config import read_clusters_config
from perdure.controller.runtime.config.config_file import ConfigFile, SettingsError
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.notify_config import read_notify_config
from perdure.controller.runtime.config.oidc_config import read_oidc_config
from perdure.controller.runtime.config.reference import config_keys
from perdure.controller.runtime.config.settings import OTHER_SECTIONS, read_settings
from perdure.recovery.job import Timeouts

KEYS = tuple(config_keys())
MAPPINGS = sorted({key.path.rpartition(".")[0] for key in KEYS} - {""})
# Sections whose names the user chooses: any key is accepted.
FREE = tuple(key.path.rpartition(".")[0] for key in KEYS if key.path.endswith(">"))
# What a reader needs before it looks at the other keys of a mapping.
REQUIRED: dict[str, dict[str, Any]] = {
    "local.zones.<name>": {"region": "here"},
    "local.zones.<name>.launch_error": {"code": "Unsupported"},
    "local.instance_types.<name>": {"vcpus": 1},
    "oci": {"namespace": "n", "region": "r"},
    "r2": {"account_id": "a"},
    "vastdata": {"endpoint": "https://vast.lan"},
    "backup": {"to": "/backups"},
    "probes": {"interval": "2h", "infra": ["aws"], "instance_types": ["a"], "budget_per_day": 1},
}


def read_all(home: Path, config: dict[str, Any]) -> None:
    """Read every section with its own reader. Raises SettingsError."""
    (home / "config.yaml").write_text(yaml.safe_dump(config))
    settings = read_settings(home, {})
    read_probe_config(settings)
    read_backup_config(settings)
    build_clouds(settings.sections, home, ManualClock(), local_home=settings.local_home)
    configured_stores(settings, buckets_on_node="/buckets")
    read_clusters_config(ConfigFile.load(home))
    read_notify_config(ConfigFile.load(home), listens_on_loopback=True)
    read_acme_config(home)
    read_oidc_config(ConfigFile.load(home))


def nest(path: str, value: Any) -> dict[str, Any]:
    """A configuration with `value` at `path`, and with the other keys that its mapping needs."""
    for depth in range(path.count("."), -1, -1):
        name = path.split(".")[depth]
        parent = ".".join(path.split(".")[:depth])
        value = REQUIRED.get(parent, {}) | {"example" if name.startswith("<") else name: value}
    return dict(value)


def test_config_keys__paths_are_unique() -> None:
    paths = [key.path for key in KEYS]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_config_keys__describe_default_and_meaning(key: ConfigKey) -> None:
    assert key.type
    assert key.default
    assert re.fullmatch(r"[A-Z0-9][^\n]*\.", key.meaning)
    if key.path.endswith("_s"):
        assert key.unit == "s"


def test_config_keys__cover_every_section() -> None:
    assert set(OTHER_SECTIONS) <= set(child_names(KEYS))


def test_config_keys__defaults_of_timeouts_are_those_in_force() -> None:
    defaults = {key.path: key.default for key in KEYS if key.path.startswith("timeouts.")}
    assert defaults == {f"timeouts.{name}": f"{value:g}" for name, value in vars(Timeouts()).items()}


@pytest.mark.parametrize("path", [key.path for key in KEYS])
def test_config_keys__readers_know_every_key(path: str, tmp_path: Path) -> None:
    """A value of no valid type may be rejected, but not as unknown."""
    error = ""
    try:
        read_all(tmp_path, nest(path, [[]]))
    except SettingsError as caught:
        error = str(caught)
    assert "no such setting" not in error


@pytest.mark.parametrize("path", ["", *(path for path in MAPPINGS if path not in (*FREE, "listen.tls"))])
def test_config_keys__readers_accept_no_other_key(path: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such setting") as caught:
        read_all(tmp_path, nest(f"{path}.not_a_key".lstrip("."), 1))
    allowed = str(caught.value).rpartition("allowed: ")[2].split(", ")
    assert set(allowed) == set(child_names(KEYS, path))
