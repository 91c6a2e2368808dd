"""The `aws:` section."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock


def test_from_mapping__accepts_an_empty_section() -> None:
    assert AwsSettings.from_mapping(None) == AwsSettings.from_mapping({}) == AwsSettings()


def test_from_mapping__reads_every_field() -> None:
    section = {
        "regions": ["us-east-1", "us-east-1", "eu-west-1"],
        "profile": "training",
        "endpoint_url": "http://127.0.0.1:1",
        "instance_profile": "node",
        "images": {"us-east-1": "ami-1"},
        "subnets": {"us-east-1a": "subnet-1"},
        "security_groups": {"us-east-1": "sg-1"},
    }
    read = AwsSettings.from_mapping(section)
    assert read.regions == ("us-east-1", "eu-west-1")
    assert read.security_groups == section["security_groups"]
    assert (read.profile, read.images, read.subnets) == ("training", section["images"], section["subnets"])


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({"region": "us-east-1"}, "aws.region"),
        ({"regions": "us-east-1"}, "aws.regions"),
        ({"regions": ["us-east-1a"]}, "aws.regions"),
        ({"regions": [1]}, "aws.regions"),
        ({"profile": 7}, "aws.profile"),
        ({"endpoint_url": "127.0.0.1"}, "aws.endpoint_url"),
        ({"images": {"us-east-1": "ubuntu"}}, "aws.images.us-east-1"),
        ({"subnets": ["subnet-1"]}, "aws.subnets"),
        ("yes", "aws"),
    ],
)
def test_from_mapping__names_an_invalid_field(section: object, where: str) -> None:
    with pytest.raises(SectionError) as caught:
        AwsSettings.from_mapping(section)
    assert caught.value.where == where
    assert caught.value.fix


def test_build_clouds__names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("log_level: info\naws:\n  regions: [nowhere]\n")
    with pytest.raises(SectionError, match=r"config\.yaml:3: aws\.regions: 'nowhere' is not a region"):
        build_clouds({"aws": {"regions": ["nowhere"]}}, tmp_path, ManualClock())


def test_build_clouds__needs_a_section_despite_credentials(tmp_path: Path) -> None:
    cloud = build_clouds({}, tmp_path, ManualClock())["aws"]
    assert "section `aws:`" in str(cloud.unusable())
    assert not cloud.offers()


def test_unusable__asks_for_missing_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    clock = ManualClock()
    cloud = build_clouds({"aws": {}}, tmp_path, clock)["aws"]
    assert "aws configure" in str(cloud.unusable())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert cloud.unusable() is not None, "it checks once, not at every call"
    clock.advance(60)
    assert cloud.unusable() is None


def test_unusable__names_a_missing_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    cloud = build_clouds({"aws": {"profile": "trainng"}}, tmp_path, ManualClock())["aws"]
    assert "trainng" in str(cloud.unusable())
    assert "aws.profile" in str(cloud.unusable())
