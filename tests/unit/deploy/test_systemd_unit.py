"""The files that set up a controller's computer: valid for their own tools, and consistent with each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.bootstrap import cloud_config
from perdure.controller.clouds.bootstrap.render import render_agent_unit
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import read_settings

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "systemd" / "perdure-controller.service"
CLOUD_INIT = DEPLOY / "cloud-init" / "controller.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
CLOUDS = Path(cloud_config.__file__).parents[1]
MAX_EXPOSURE = 1.5  # of 10; "safe" ends at 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@needs_systemd
def test_unit__is_valid_for_systemd(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/perdure/bin/python", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_unit__is_sandboxed() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", UNIT], capture_output=True, text=True, check=False
    )
    (level,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert float(level) <= MAX_EXPOSURE, done.stdout


@needs_systemd
def test_hosted_unit__is_valid_for_systemd(tmp_path: Path) -> None:
    text = cloud_config.render_unit()
    assert "ExecStart=/usr/bin/python3 /opt/perdure/installer.py" in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/usr/bin/python3", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_agent_unit__is_valid_for_systemd(tmp_path: Path) -> None:
    unit = tmp_path / "perdure-agent.service"
    unit.write_text(render_agent_unit())
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_packaged_files__equal_those_of_deploy() -> None:
    assert (CLOUDS / "bootstrap" / UNIT.name).read_text() == UNIT.read_text()
    for listed, brought in (
        ("aws-controller.json", "aws/iam/controller_policy.json"),
        ("aws-buckets.json", "aws/iam/buckets_policy.json"),
        ("aws-node.json", "aws/iam/node_policy.json"),
        ("gcp-controller.yaml", "gcp/iam/controller_role.yaml"),
        ("azure-controller.json", "azure/iam/controller_role.json"),
    ):
        assert (CLOUDS / brought).read_text() == (DEPLOY / "iam" / listed).read_text()


def written() -> dict[str, str]:
    return {file["path"]: file["content"] for file in yaml.safe_load(CLOUD_INIT.read_text())["write_files"]}


def test_cloud_init__installs_the_same_unit() -> None:
    assert CLOUD_INIT.read_text().startswith("#cloud-config\n")
    assert written()["/etc/systemd/system/perdure-controller.service"] == UNIT.read_text()


def test_cloud_init__has_a_valid_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(written()["/var/lib/perdure/config.yaml"])
    settings = read_settings(tmp_path, {})
    assert (settings.host, settings.port, settings.default_store) == ("0.0.0.0", 8443, "s3")
    clouds = build_clouds(settings.sections, tmp_path, ManualClock(), local_home=settings.local_home, has_local=False)
    assert "turns it off" in (clouds["local"].unusable() or "")
    assert "not set up" not in (clouds["aws"].unusable() or "")


def test_dockerfile__passes_hadolint() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_dockerfile__copies_what_the_wheel_is_built_from() -> None:
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), flags=re.MULTILINE))
    names = {name for line in copied for name in line.split()}
    sources = {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "recovery", "checkpoint", "controller"}
    assert sources | {"deploy/docker/build.lock"} == names
