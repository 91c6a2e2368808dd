"""Settings from config.yaml and the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.controller.buckets.configured import configured_stores
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import RetentionSettings, Settings, read_settings

DATABASE = "postgresql://perdure@db/perdure"


def settings(home: Path, text: str = "", **environ: str) -> Settings:
    (home / "config.yaml").write_text(text)
    return read_settings(home, environ)


def test_read_settings__defaults_to_a_single_controller_with_sqlite(tmp_path: Path) -> None:
    result = settings(tmp_path)
    assert result.database_address == f"sqlite:///{tmp_path / 'perdure.db'}"
    assert result.is_single_controller
    assert result.keyring_directory == tmp_path
    assert result.local_home == tmp_path


def test_read_settings__several_controllers_from_file_or_environment(tmp_path: Path) -> None:
    text = (
        f"database: {{url: '{DATABASE}', lease_duration_s: 5}}\nkeyring: /k\nlisten: {{advertise: 'http://lb:8080/'}}\n"
    )
    result = settings(tmp_path, text)
    assert (result.database_address, result.lease_duration_s, result.is_single_controller) == (DATABASE, 5.0, False)
    assert (result.keyring_directory, result.advertise) == (Path("/k"), "http://lb:8080")
    other = settings(tmp_path, text, PERDURE_DATABASE_URL="postgresql://other/db", PERDURE_KEYRING="/other")
    assert (other.database_address, other.keyring_directory) == ("postgresql://other/db", Path("/other"))


def test_local_home__requires_a_shared_folder_behind_one_address(tmp_path: Path) -> None:
    behind = f"database: {{url: '{DATABASE}'}}\nlisten: {{advertise: 'http://lb:8080'}}\n"
    home = tmp_path / "one"
    home.mkdir()
    assert settings(home, behind).local_home is None
    assert settings(home, behind + f"local: {{directory: {tmp_path}}}\n").local_home == tmp_path
    assert settings(home, f"database: {{url: '{DATABASE}'}}\n").local_home == home, "one controller, on one computer"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("database: {lease_duration_s: 0.1}", "config.yaml:1: database.lease_duration_s"),
        ("database: {lease_duration_s: soon}", "config.yaml:1: database.lease_duration_s"),
        ("database: {address: x}", "config.yaml:1: database.address: no such setting; allowed: url, lease_duration_s"),
        (
            "timeouts: {drain_timeout: 3}",
            "config.yaml:1: timeouts.drain_timeout: no such setting; did you mean 'drain_timeout_s'?",
        ),
        ("listem: {}", "config.yaml:1: listem: no such setting; did you mean 'listen'?"),
        (
            "nodes: {heartbeat_interval_s: 0.01}",
            "config.yaml:1: nodes.heartbeat_interval_s: expected seconds (from 0.1)",
        ),
        ("listen: {advertise: 'lb:8080'}", "config.yaml:1: listen.advertise"),
        ("retention: {jobs_days: 0}", "config.yaml:1: retention.jobs_days: expected days"),
        ("retention: {logs_days: yes}", "config.yaml:1: retention.logs_days: expected days"),
        ("retention: {events_days: .inf}", "config.yaml:1: retention.events_days: expected days"),
        ("retention: {days: 3}", "config.yaml:1: retention.days: no such setting"),
        ("retention: 30", "config.yaml:1: retention: expected a mapping"),
        ("local: {directory: /srv/elsewhere}", "config.yaml:1: local.directory"),
        ("listen: {port: abc}", "config.yaml:1: listen.port"),
        ("log_level: info\nlisten:\n  port: 70000", "config.yaml:3: listen.port"),
        ("timeouts:\n  drain_timeout_s: -3", "config.yaml:2: timeouts.drain_timeout_s"),
        ("limits:\n  drain: 3", "config.yaml:2: limits.drain"),
        ("log_level: loudly", "config.yaml:1: log_level"),
        ("local: {}\nlocal: {}", "config.yaml:2: local"),
        ("timeouts:\n\tdrain_timeout_s: 3", "config.yaml:2: "),
    ],
)
def test_read_settings__names_invalid_key(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, text)
    assert where in str(caught.value)


def test_read_settings__names_all_invalid_keys_at_once(tmp_path: Path) -> None:
    text = """\
listem: {}
listen: {port: 70000, advertise: lb}
timeouts: {boot_timeout_s: soon, drain_timeout_s: -1}
log_level: loud
retention: {days: 3, weeks: 1}
aws: {max_machines: 0}
"""
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, text)
    lines = [line.removeprefix(f"{tmp_path}/config.yaml:") for line in str(caught.value).splitlines()]
    assert [line.split(": ")[:2] for line in lines] == [
        ["1", "listem"],
        ["2", "listen.port"],
        ["2", "listen.advertise"],
        ["4", "log_level"],
        ["3", "timeouts.boot_timeout_s"],
        ["3", "timeouts.drain_timeout_s"],
        ["5", "retention.days"],
        ["5", "retention.weeks"],
        ["6", "aws.max_machines"],
    ]


@pytest.mark.parametrize(
    "section", ["jobs: {controller: {resources: {cpus: 4+}}}", "kubernetes: {ports: loadbalancer}"]
)
def test_read_settings__accepts_unused_sections_of_skypilot(tmp_path: Path, section: str) -> None:
    assert settings(tmp_path, section + "\nlog_level: debug\n").log_level == "debug"


def test_local_home__none_if_local_cloud_is_turned_off(tmp_path: Path) -> None:
    result = settings(tmp_path, "local: false\n")
    assert result.local_home is None
    assert "config.yaml turns it off" in (
        build_clouds(result.sections, tmp_path, ManualClock())["local"].unusable() or ""
    )
    assert set(configured_stores(result, buckets_on_node=None)) == {"s3", "gcs", "azure"}


def test_default_store__must_be_configured(tmp_path: Path) -> None:
    assert settings(tmp_path, "default_store: s3\n").default_store == "s3"
    assert settings(tmp_path, "default_store: r2\nr2: {account_id: x}\n").default_store == "r2"
    with pytest.raises(
        SettingsError, match=r"config.yaml:1: default_store: expected one of local, s3, gcs, azure, found 'r2'"
    ):
        settings(tmp_path, "default_store: r2\n")


def test_retention__keeps_all_of_jobs_by_default(tmp_path: Path) -> None:
    assert settings(tmp_path).retention == RetentionSettings(None, None, None, 400.0)
    result = settings(tmp_path, "retention: {events_days: 90, logs_days: 1.5, jobs_days: null, audit_days: null}")
    assert result.retention == RetentionSettings(90, 1.5, None, None)


def test_has_outdated_config__after_a_change_of_the_file(tmp_path: Path) -> None:
    result = read_settings(tmp_path, {})
    assert not result.has_outdated_config
    result = settings(tmp_path, "log_level: debug\n")
    assert not result.has_outdated_config
    os.utime(tmp_path / "config.yaml", (1, 1))
    assert result.has_outdated_config
    (tmp_path / "config.yaml").unlink()
    assert result.has_outdated_config


def test_read_settings__says_that_the_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"config\.yaml: is not a text file in UTF-8; correct or remove it"):
        read_settings(tmp_path, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_read_settings__says_how_to_make_the_file_readable(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch(mode=0o000)
    with pytest.raises(SettingsError, match="run: chmod u\\+r "):
        read_settings(tmp_path, {})
