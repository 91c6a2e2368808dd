"""The Terraform modules: read by Terraform where it is installed, and by a parser of their language everywhere.

Providers come from the network, so this test does not use them. What the machines boot with needs none.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

from perdure.controller.clouds.bootstrap import cloud_config
from perdure.controller.runtime.config.settings import read_settings

DEPLOY = Path(__file__).parents[3] / "deploy"
MODULES = DEPLOY / "terraform"
OF_BUCKETS = {"aws": ("aws-buckets.json", "aws-node.json")}  # elsewhere the policy of the controller includes them
POLICIES = {"aws": "aws-controller.json", "gcp": "gcp-controller.yaml", "azure": "azure-controller.json"}
ALL = (*POLICIES, "user-data")

needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")


def source(name: str) -> str:
    return "\n".join(path.read_text() for path in sorted((MODULES / name).glob("*.tf")))


def blocks(name: str, kind: str) -> list[dict[str, Any]]:
    """All blocks of a kind, as the parser returns them: a mapping from the label each."""
    settings: list[dict[str, Any]] = hcl2.loads(source(name)).get(kind, [])
    return settings


def labels(block: dict[str, Any]) -> str:
    """`type.name` of a resource, otherwise the name."""
    outer = next(key for key in block if not key.startswith("__"))
    inner = [key for key in block[outer] if not key.startswith("__")]
    is_pair = len(inner) == 1 and isinstance(block[outer][inner[0]], dict) and "_" in outer
    return ".".join(part.strip('"') for part in ([outer, inner[0]] if is_pair else [outer]))


def terraform(*words: object, folder: Path, data: Path) -> str:
    environ = {**os.environ, "TF_DATA_DIR": str(data), "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        ["terraform", f"-chdir={folder}", *map(str, words)],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ALL)
def test_variables__are_described_and_used(name: str) -> None:
    declared = {labels(block) for block in blocks(name, "variable")}
    assert declared == set(re.findall(r"\bvar\.(\w+)", source(name)))
    assert source(name).count("description = ") + source(name).count("description  = ") >= len(declared)


@pytest.mark.parametrize("name", POLICIES)
def test_references__exist(name: str) -> None:
    text = re.sub(r"#.*", "", source(name))
    made = {labels(block) for block in blocks(name, "resource")}
    read = {f"data.{labels(block)}" for block in blocks(name, "data")} if "\ndata " in text else set()
    used = set(re.findall(r"(?:data\.)?\b(?:aws|google|azurerm)_\w+\.\w+", text))
    assert used
    assert used <= made | read


@pytest.mark.parametrize(("name", "policy"), POLICIES.items())
def test_machine__gets_the_listed_role_a_protected_disk_and_one_port(name: str, policy: str) -> None:
    text = source(name)
    assert re.findall(r'file\("\$\{path\.module\}/\.\./\.\./iam/([^"]+)"\)', text) == [
        policy,
        *OF_BUCKETS.get(name, ()),
    ]
    assert (DEPLOY / "iam" / policy).is_file()
    assert text.count("prevent_destroy = true") == 1
    assert set(re.findall(r"\b(?:from_port|ports|destination_port_range)\s*= \[?\"?(\d+)", text)) - {"0"} == {"8443"}
    assert "var.callers" in text
    extras = re.findall(r'"perdure\[(\S+)\] @ ', text)
    assert extras == [f"controller,{name}"]


@needs_terraform
def test_modules__have_terraforms_layout(tmp_path: Path) -> None:
    assert terraform("fmt", "-recursive", "-check", folder=MODULES, data=tmp_path) == ""


@needs_terraform
def test_user_data__installs_the_controller(tmp_path: Path) -> None:
    given = {"device": "/dev/sdf", "address": "192.0.2.7", "package": "perdure.whl[aws]", "config": {"aws": {}}}
    variables = [
        f"-var={name}={json.dumps(value) if isinstance(value, dict) else value}" for name, value in given.items()
    ]
    terraform("init", "-backend=false", "-input=false", folder=MODULES / "user-data", data=tmp_path)
    state = f"-state={tmp_path / 'state'}"
    terraform("apply", "-auto-approve", "-input=false", state, *variables, folder=MODULES / "user-data", data=tmp_path)
    text = terraform("output", state, "-raw", "text", folder=MODULES / "user-data", data=tmp_path)
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    written = {file["path"]: b64(file["content"]) for file in config["write_files"]}
    assert written["/opt/perdure/mount_state.sh"] == (cloud_config.HERE / "mount_state.sh").read_text()
    service = written["/etc/systemd/system/perdure-controller.service"]
    assert service.split("[Service]")[0] == cloud_config.render_unit().split("[Service]")[0]
    assert (
        service.split("[Service]")[1]
        == (cloud_config.HERE / "perdure-controller.service").read_text().split("[Service]")[1]
    )
    (tmp_path / "config.yaml").write_text(written["/opt/perdure/config.yaml"])
    settings = read_settings(tmp_path, {})
    assert (settings.host, settings.port, settings.advertise) == ("0.0.0.0", 8443, "https://192.0.2.7:8443")
    assert (settings.sections["aws"], settings.sections["local"], settings.default_store) == ({}, False, "s3")
    assert config["runcmd"][0] == ["/opt/perdure/mount_state.sh", "/dev/sdf", "/var/lib/perdure"]
    assert config["runcmd"][-1] == ["systemctl", "enable", "--now", "perdure-controller"]


def b64(text: str) -> str:

    return base64.b64decode(text).decode()
