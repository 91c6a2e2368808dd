"""Quotas of users and clouds in config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.limits import Quotas
from perdure.controller.runtime.config.settings import read_settings


@pytest.mark.parametrize(
    ("text", "quotas"),
    [
        ("", Quotas()),
        ("limits: {max_jobs_per_user: 5, max_running_jobs_per_user: null}", Quotas(5)),
        ("limits: {requests_per_second: null}", Quotas(requests_per_second=None)),
        ("limits: {requests_per_second: 0.5}", Quotas(requests_per_second=0.5)),
        ("local: {max_machines: 3}\naws: {max_concurrent_calls: 4}", Quotas(None, None, {"aws": 4}, {"local": 3})),
    ],
)
def test_read_quotas__reads_users_and_clouds(tmp_path: Path, text: str, quotas: Quotas) -> None:
    (tmp_path / "config.yaml").write_text(text)
    settings = read_settings(tmp_path, {})
    assert settings.quotas == quotas
    build_clouds(settings.sections, tmp_path, ManualClock())


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("limits: {max_jobs_per_user: 0}", "config.yaml:1: limits.max_jobs_per_user"),
        ("limits: {max_running_jobs_per_user: many}", "config.yaml:1: limits.max_running_jobs_per_user"),
        ("limits: {requests_per_second: 0}", "config.yaml:1: limits.requests_per_second"),
        ("gcp:\n  max_machines: 1.5", "config.yaml:2: gcp.max_machines"),
        ("azure: {max_concurrent_calls: true}", "config.yaml:1: azure.max_concurrent_calls"),
        ("limits: {max_jobs: 3}", "config.yaml:1: limits.max_jobs: no such setting; did you mean 'max_jobs_per_user'?"),
    ],
)
def test_read_quotas__names_invalid_key(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings(tmp_path, {})
    assert where in str(caught.value)
