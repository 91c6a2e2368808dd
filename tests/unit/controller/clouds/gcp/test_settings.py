"""The `gcp:` section."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock


def test_from_mapping__accepts_an_empty_section() -> None:
    assert GcpSettings.from_mapping(None) == GcpSettings.from_mapping({}) == GcpSettings()
    assert GcpSettings().external_ip


def test_from_mapping__reads_every_field() -> None:
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
        "interruption_queues": [
            "projects/p/subscriptions/perdure",
            "https://eu-pubsub.example/v1/projects/p/subscriptions/s-1",
        ],
        "endpoint_url": "http://127.0.0.1:1",
    }
    read = GcpSettings.from_mapping(section)
    assert read.regions == ("us-central1", "northamerica-northeast1")
    expected = {**section, "regions": read.regions, "interruption_queues": tuple(section["interruption_queues"])}
    assert {name: getattr(read, name) for name in expected} == expected


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
        ({"interruption_queues": "projects/p/subscriptions/s"}, "gcp.interruption_queues"),
        ({"interruption_queues": ["projects/p/topics/perdure"]}, "gcp.interruption_queues"),
        (
            {"interruption_queues": ["https://pubsub.googleapis.com/projects/p/subscriptions/perdure"]},
            "gcp.interruption_queues",
        ),
        ({"subnets": ["a"]}, "gcp.subnets"),
        ({"subnets": {"us-central1": 1}}, "gcp.subnets.us-central1"),
        ("yes", "gcp"),
    ],
)
def test_from_mapping__names_an_invalid_field(section: object, where: str) -> None:
    with pytest.raises(SectionError) as caught:
        GcpSettings.from_mapping(section)
    assert caught.value.where == where
    assert caught.value.fix


def test_build_clouds__names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("log_level: info\ngcp:\n  regions: [nowhere]\n")
    with pytest.raises(SectionError, match=r"config\.yaml:3: gcp\.regions: 'nowhere' is not a region"):
        build_clouds({"gcp": {"regions": ["nowhere"]}}, tmp_path, ManualClock())


def test_build_clouds__needs_a_section_despite_credentials(tmp_path: Path) -> None:
    cloud = build_clouds({}, tmp_path, ManualClock())["gcp"]
    assert "section `gcp:`" in str(cloud.unusable())
    assert not cloud.offers()


def test_build_clouds__imports_the_sdk_with_the_first_call(tmp_path: Path) -> None:
    """The SDK takes seconds and more than 100 MiB."""
    code = (
        "import sys, pathlib; from perdure.controller.runtime.clock import ManualClock;"
        "from perdure.controller.clouds.registry import build_clouds;"
        f"cloud = build_clouds({{'gcp': {{}}}}, pathlib.Path({str(tmp_path)!r}), ManualClock())['gcp'];"
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
def test_unusable__asks_for_missing_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    cloud = build_clouds({"gcp": {"project": "p"}}, tmp_path, clock)["gcp"]
    assert "gcloud auth application-default login" in str(cloud.unusable())
    key = tmp_path / "user.json"
    key.write_text('{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    assert cloud.unusable() is not None, "it checks once, not at every call"
    clock.advance(60)
    assert cloud.unusable() is None


@pytest.mark.usefixtures("nothing_around")
def test_unusable__asks_for_a_missing_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "user.json"
    key.write_text('{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    cloud = build_clouds({"gcp": {}}, tmp_path, ManualClock())["gcp"]
    assert "`project: …`" in str(cloud.unusable())


@pytest.mark.usefixtures("nothing_around")
def test_unusable__names_the_variable_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    why = str(build_clouds({"gcp": {"project": "p"}}, tmp_path, ManualClock())["gcp"].unusable())
    assert why.startswith(
        "the credentials that GOOGLE_APPLICATION_CREDENTIALS=/nowhere/key.json names cannot be used: "
    )


@pytest.mark.usefixtures("nothing_around")
def test_unusable__names_a_missing_key_file(tmp_path: Path) -> None:
    cloud = build_clouds({"gcp": {"credentials": "/nowhere/key.json"}}, tmp_path, ManualClock())["gcp"]
    assert "/nowhere/key.json" in str(cloud.unusable())
    assert "gcp.credentials" in str(cloud.unusable())


@pytest.mark.usefixtures("nothing_around")
def test_unusable__names_an_invalid_key_file(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"type": "authorized_user"}')
    cloud = build_clouds({"gcp": {"credentials": str(tmp_path / "key.json")}}, tmp_path, ManualClock())["gcp"]
    assert "gcp.credentials" in str(cloud.unusable())
