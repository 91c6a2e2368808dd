"""The `gcp:` section."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.registry import enabled_clouds
from perdure.controller.clouds.section import SettingsError


def test_an_empty_section_is_enough() -> None:
    assert GcpSettings.from_mapping(None) == GcpSettings.from_mapping({}) == GcpSettings()
    assert GcpSettings().external_ip


def test_all_of_it_is_read() -> None:
    section: dict[str, Any] = {
        "project": "p",
        "credentials": "/etc/key.json",
        "regions": ["us-central1", "us-central1", "northamerica-northeast1"],
        "network": "training",
        "subnets": {"us-central1": "a"},
        "external_ip": False,
        "service_account": "node@p.iam.gserviceaccount.com",
        "image": "projects/p/global/images/mine",
        "preemption_notice": True,
        "notice_queues": [
            "projects/p/subscriptions/perdure",
            "https://eu-pubsub.example/v1/projects/p/subscriptions/s-1",
        ],
        "endpoint_url": "http://127.0.0.1:1",
    }
    read = GcpSettings.from_mapping(section)
    assert read.regions == ("us-central1", "northamerica-northeast1")
    told = {**section, "regions": read.regions, "notice_queues": tuple(section["notice_queues"])}
    assert {name: getattr(read, name) for name in told} == told


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({"region": "us-central1"}, "gcp.region"),
        ({"regions": "us-central1"}, "gcp.regions"),
        ({"regions": ["us-central1-a"]}, "gcp.regions"),
        ({"regions": [1]}, "gcp.regions"),
        ({"project": 7}, "gcp.project"),
        ({"endpoint_url": "127.0.0.1"}, "gcp.endpoint_url"),
        ({"external_ip": "no"}, "gcp.external_ip"),
        ({"preemption_notice": 120}, "gcp.preemption_notice"),
        ({"notice_queues": "projects/p/subscriptions/s"}, "gcp.notice_queues"),
        ({"notice_queues": ["projects/p/topics/perdure"]}, "gcp.notice_queues"),
        ({"notice_queues": ["https://pubsub.googleapis.com/projects/p/subscriptions/perdure"]}, "gcp.notice_queues"),
        ({"subnets": ["a"]}, "gcp.subnets"),
        ({"subnets": {"us-central1": 1}}, "gcp.subnets.us-central1"),
        ("yes", "gcp"),
    ],
)
def test_what_can_not_be_used_is_named(section: object, where: str) -> None:
    with pytest.raises(SettingsError) as caught:
        GcpSettings.from_mapping(section)
    assert caught.value.where == where
    assert caught.value.fix


def test_the_file_and_line_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("log_level: info\ngcp:\n  regions: [nowhere]\n")
    with pytest.raises(SettingsError, match=r"config\.yaml:3: gcp\.regions: 'nowhere' is no region"):
        enabled_clouds({"gcp": {"regions": ["nowhere"]}}, tmp_path, ManualClock())


def test_without_the_section_nothing_is_bought_whatever_credentials_there_are(tmp_path: Path) -> None:
    cloud = enabled_clouds({}, tmp_path, ManualClock())["gcp"]
    assert "section `gcp:`" in str(cloud.unusable())
    assert not cloud.offers()


def test_the_sdk_is_loaded_when_a_call_is_made_and_no_sooner(tmp_path: Path) -> None:
    """It costs seconds and more than 100 MiB."""
    code = (
        "import sys, pathlib; from perdure.controller.clock import ManualClock;"
        "from perdure.controller.clouds.registry import enabled_clouds;"
        f"cloud = enabled_clouds({{'gcp': {{}}}}, pathlib.Path({str(tmp_path)!r}), ManualClock())['gcp'];"
        "cloud.notes(); print([m for m in sys.modules if m.startswith('google')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))


@pytest.mark.usefixtures("nothing_around")
def test_without_credentials_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    cloud = enabled_clouds({"gcp": {"project": "p"}}, tmp_path, clock)["gcp"]
    assert "gcloud auth application-default login" in str(cloud.unusable())
    key = tmp_path / "user.json"
    key.write_text('{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    assert cloud.unusable() is not None, "it does not look again at every question"
    clock.advance(60)
    assert cloud.unusable() is None


@pytest.mark.usefixtures("nothing_around")
def test_credentials_without_a_project_need_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "user.json"
    key.write_text('{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    cloud = enabled_clouds({"gcp": {}}, tmp_path, ManualClock())["gcp"]
    assert "`project: …`" in str(cloud.unusable())


@pytest.mark.usefixtures("nothing_around")
def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    cloud = enabled_clouds({"gcp": {"credentials": "/nowhere/key.json"}}, tmp_path, ManualClock())["gcp"]
    assert "/nowhere/key.json" in str(cloud.unusable())
    assert "gcp.credentials" in str(cloud.unusable())


@pytest.mark.usefixtures("nothing_around")
def test_a_file_that_is_no_service_accounts_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"type": "authorized_user"}')
    cloud = enabled_clouds({"gcp": {"credentials": str(tmp_path / "key.json")}}, tmp_path, ManualClock())["gcp"]
    assert "gcp.credentials" in str(cloud.unusable())
