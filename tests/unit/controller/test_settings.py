"""What config.yaml and the environment say of databases, addresses and keyrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.registry import enabled_clouds
from perdure.controller.settings import RetentionSettings, Settings, SettingsError, read_settings
from perdure.controller.storage.configured import stores_of

DATABASE = "postgresql://perdure@db/perdure"


def settings(home: Path, text: str = "", **environ: str) -> Settings:
    (home / "config.yaml").write_text(text)
    return read_settings(home, environ)


def test_by_default_a_controller_is_alone_on_a_file_of_its_home(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found.url == f"sqlite:///{tmp_path / 'perdure.db'}"
    assert found.is_alone
    assert found.keyring == tmp_path
    assert found.local_home == tmp_path


def test_several_controllers_are_set_up_by_file_or_environment(tmp_path: Path) -> None:
    text = f"database: {{url: '{DATABASE}', lease_s: 5}}\nkeyring: /k\nlisten: {{advertise: 'http://lb:8080/'}}\n"
    found = settings(tmp_path, text)
    assert (found.url, found.lease_s, found.is_alone) == (DATABASE, 5.0, False)
    assert (found.keyring, found.advertise) == (Path("/k"), "http://lb:8080")
    other = settings(tmp_path, text, PERDURE_DATABASE_URL="postgresql://other/db", PERDURE_KEYRING="/other")
    assert (other.url, other.keyring) == ("postgresql://other/db", Path("/other"))


def test_behind_an_address_the_local_cloud_is_off_unless_its_folder_is_shared(tmp_path: Path) -> None:
    behind = f"database: {{url: '{DATABASE}'}}\nlisten: {{advertise: 'http://lb:8080'}}\n"
    home = tmp_path / "one"
    home.mkdir()
    assert settings(home, behind).local_home is None
    assert settings(home, behind + f"local: {{directory: {tmp_path}}}\n").local_home == tmp_path
    assert settings(home, f"database: {{url: '{DATABASE}'}}\n").local_home == home, "one controller, on one computer"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("database: {lease_s: 0.1}", "config.yaml:1: database.lease_s"),
        ("database: {lease_s: soon}", "config.yaml:1: database.lease_s"),
        ("database: {address: x}", "config.yaml:1: database.address"),
        ("listen: {advertise: 'lb:8080'}", "config.yaml:1: listen.advertise"),
        ("retention: {jobs_days: 0}", "config.yaml:1: retention.jobs_days: expected days"),
        ("retention: {logs_days: yes}", "config.yaml:1: retention.logs_days: expected days"),
        ("retention: {events_days: .inf}", "config.yaml:1: retention.events_days: expected days"),
        ("retention: {days: 3}", "config.yaml:1: retention.days: no such setting"),
        ("retention: 30", "config.yaml:1: retention: expected a mapping"),
        ("local: {directory: /srv/elsewhere}", "config.yaml:1: local.directory"),
    ],
)
def test_what_can_not_be_used_is_named(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, text)
    assert where in str(caught.value)


def test_the_local_cloud_can_be_turned_off(tmp_path: Path) -> None:
    found = settings(tmp_path, "local: false\n")
    assert found.local_home is None
    assert "config.yaml turns it off" in (
        enabled_clouds(found.sections, tmp_path, ManualClock())["local"].unusable() or ""
    )
    assert set(stores_of(found, buckets_on_node=None)) == {"s3", "gcs", "azure"}


def test_the_default_store_is_one_that_is_set_up(tmp_path: Path) -> None:
    assert settings(tmp_path, "default_store: s3\n").default_store == "s3"
    assert settings(tmp_path, "default_store: r2\nr2: {account_id: x}\n").default_store == "r2"
    with pytest.raises(
        SettingsError, match=r"config.yaml:1: default_store: expected one of local, s3, gcs, azure, found 'r2'"
    ):
        settings(tmp_path, "default_store: r2\n")


def test_everything_is_kept_unless_it_is_said_for_how_long(tmp_path: Path) -> None:
    assert settings(tmp_path).retention == RetentionSettings(None, None, None)
    found = settings(tmp_path, "retention: {events_days: 90, logs_days: 1.5, jobs_days: null}")
    assert found.retention == RetentionSettings(90, 1.5, None)
