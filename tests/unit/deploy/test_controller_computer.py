"""What sets up a computer for a controller: read by the tools whose files these are, and in step with each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perdure.controller.clock import ManualClock
from perdure.controller.clouds.registry import enabled_clouds
from perdure.controller.hosting import cloud_config
from perdure.controller.settings import read_settings

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "systemd" / "perdure-controller.service"
CLOUD_INIT = DEPLOY / "cloud-init" / "controller.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
PACKAGE = Path(cloud_config.__file__).parents[1]
MOST_EXPOSED = 1.5  # of 10; "safe" ends at 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@needs_systemd
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/perdure/bin/python", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_the_unit_may_do_little() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", UNIT], capture_output=True, text=True, check=False
    )
    (level,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert float(level) <= MOST_EXPOSED, done.stdout


@needs_systemd
def test_systemd_understands_the_unit_of_a_machine_that_was_brought_up(tmp_path: Path) -> None:
    text = cloud_config.unit()
    assert "ExecStart=/usr/bin/python3 /opt/perdure/caretaker.py" in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/usr/bin/python3", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_package_brings_along_is_what_lies_here() -> None:
    assert (PACKAGE / "hosting" / UNIT.name).read_text() == UNIT.read_text()
    for listed, brought in (
        ("aws-controller.json", "aws/controller_policy.json"),
        ("gcp-controller.yaml", "gcp/controller_role.yaml"),
        ("azure-controller.json", "azure/controller_role.json"),
    ):
        assert (PACKAGE / "clouds" / brought).read_text() == (DEPLOY / "iam" / listed).read_text()


def written() -> dict[str, str]:
    return {file["path"]: file["content"] for file in yaml.safe_load(CLOUD_INIT.read_text())["write_files"]}


def test_a_virtual_machine_gets_the_same_unit() -> None:
    assert CLOUD_INIT.read_text().startswith("#cloud-config\n")
    assert written()["/etc/systemd/system/perdure-controller.service"] == UNIT.read_text()


def test_its_configuration_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(written()["/var/lib/perdure/config.yaml"])
    found = read_settings(tmp_path, {})
    assert (found.host, found.port, found.default_store) == ("0.0.0.0", 8443, "s3")
    clouds = enabled_clouds(found.sections, tmp_path, ManualClock(), local_home=found.local_home, has_local=False)
    assert "turns it off" in (clouds["local"].unusable() or "")
    assert "not set up" not in (clouds["aws"].unusable() or "")


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_holds_what_the_wheel_is_built_from() -> None:
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), flags=re.MULTILINE))
    names = {name for line in copied for name in line.split()}
    assert {"pyproject.toml", "README.md", "LICENSE", "recovery", "checkpoint", "controller"} == names
