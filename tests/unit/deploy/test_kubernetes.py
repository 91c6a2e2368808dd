"""The manifests and the chart for clusters: they are valid, agree with each other, and grant the rights in use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.clouds.kubernetes.config_keys import CONFIG_KEYS
from perdure.controller.clouds.kubernetes.rights import RIGHTS
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.config.settings import read_settings
from support.fakes.kube.schemas import VERSIONS, is_available, schema_errors

DEPLOY = Path(__file__).parents[3] / "deploy"
MANIFESTS = ("rbac.yaml", "controller.yaml")
RELEASE = {"Name": "perdure", "Namespace": "training"}


def objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


def rendered(name: str) -> str:
    """A template of the chart with the default values, in which its loops and conditions are empty."""
    text = (DEPLOY / "helm/perdure/templates" / name).read_text()
    values = yaml.safe_load((DEPLOY / "helm/perdure/values.yaml").read_text())
    assert values["config"] == values["kubernetes"] == {}
    assert values["storageClassName"] == ""
    text = re.sub(r"\n *\{\{- (?:range|if) [^}]*\}\}.*?\{\{- end \}\}", "", text, flags=re.DOTALL)

    def value(match: re.Match[str]) -> str:
        kind, key, form = match[1], match[2], match[3]
        found = RELEASE[key] if kind == "Release" else values[key]
        return str(found) if form is None else json.dumps(found)

    text = re.sub(r"\{\{ \.(Release|Values)\.(\w+)(?: \| (toJson|quote))? \}\}", value, text)
    assert "{{" not in text
    return text


@pytest.mark.parametrize("name", MANIFESTS)
def test_chart__renders_the_manifests(name: str) -> None:
    plain = objects((DEPLOY / "kubernetes" / name).read_text())
    chart = objects(rendered(name))
    for one in [*plain, *chart]:
        if one["kind"] == "ConfigMap":
            one["data"] = yaml.safe_load(one["data"]["config.yaml"])
    assert chart == plain


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.skipif(not is_available(), reason="kubernetes-validate is not installed")
def test_manifests__are_valid(name: str) -> None:
    for one in objects((DEPLOY / "kubernetes" / name).read_text()):
        assert schema_errors(one, VERSIONS) == ""


def test_roles__grant_the_rights_in_use_and_no_others() -> None:
    granted: dict[bool, set[tuple[str, str, str]]] = {False: set(), True: set()}
    for one in objects((DEPLOY / "kubernetes/rbac.yaml").read_text()):
        for rule in one.get("rules", ()):
            granted[one["kind"] == "ClusterRole"] |= {
                (group, resource, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    used: dict[bool, set[tuple[str, str, str]]] = {False: set(), True: set()}
    for right in RIGHTS:
        used[right.is_cluster_wide] |= {(right.group, right.resource, verb) for verb in right.verbs}
    assert granted == used


def test_config__is_accepted_by_the_controller(tmp_path: Path) -> None:
    config = next(
        one for one in objects((DEPLOY / "kubernetes/controller.yaml").read_text()) if one["kind"] == "ConfigMap"
    )
    (tmp_path / "config.yaml").write_text(config["data"]["config.yaml"])
    settings = read_settings(tmp_path)
    assert KubernetesSettings.from_mapping(settings.sections["kubernetes"]).of_context("any").namespace == "training"
    assert "namespace" in CONFIG_KEYS
