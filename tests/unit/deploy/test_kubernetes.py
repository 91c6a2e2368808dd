"""The manifests and the chart for clusters: they are valid, agree with each other, and grant the rights in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.clouds.kubernetes.config_keys import CONFIG_KEYS
from perdure.controller.clouds.kubernetes.rights import RIGHTS
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.config.settings import read_settings
from support.fakes.kube.schemas import VERSIONS, is_available, schema_errors

try:
    import helm_python as helm
except ImportError:  # there are no wheels for some machines
    helm = None

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm/perdure"
MANIFESTS = ("rbac.yaml", "controller.yaml")
RELEASE = {"Name": "perdure", "Namespace": "training"}


def objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


def rendered(name: str, **values: Any) -> str:
    """A template of the chart as `helm template` renders it, with these values beside the default ones."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name=RELEASE["Name"], namespace=RELEASE["Namespace"])
        return texts[f"perdure/templates/{name}"]


INFO = 1  # a severity of `helm lint`
needs_helm = pytest.mark.skipif(helm is None, reason="helm-python-sdk is not installed")


@needs_helm
def test_chart__has_nothing_that_helm_complains_about() -> None:
    found = helm.lint(CHART, strict=True)
    assert found["total_charts_linted"] == 1
    assert not found["errors"]
    assert not [one for one in found["messages"] if one["severity"] > INFO]


@needs_helm
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


VALUES: dict[str, dict[str, Any]] = {
    "without a policy": {"networkPolicy": {"enabled": False}},
    "a storage class": {"storageClassName": "fast", "storage": "100Gi"},
    "more configuration": {
        "config": {"aws": {"regions": ["us-east-1"]}},
        "kubernetes": {"kueue": {"local_queue_name": "spot"}, "pricing": {"cpu": 0.03}},
    },
    "several controllers": {
        "replicas": 3,
        "database": {"secret": "perdure-database", "keyringSecret": "perdure-keyring"},
        "tls": {"secret": "perdure-tls"},
    },
}


@needs_helm
@pytest.mark.skipif(not is_available(), reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_chart__with_other_values_is_valid(values: dict[str, Any], tmp_path: Path) -> None:
    listed = [one for name in MANIFESTS for one in objects(rendered(name, **values))]
    for one in listed:
        assert schema_errors(one, VERSIONS) == ""
    has_policy = any(one["kind"] == "NetworkPolicy" for one in listed)
    assert has_policy is ("networkPolicy" not in values)
    config = next(one for one in listed if one["kind"] == "ConfigMap")["data"]["config.yaml"]
    config = config.replace("/etc/perdure", str(tmp_path))
    for name in ("tls/tls.crt", "tls/tls.key"):  # the Secret's
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "config.yaml").write_text(config)
    sections = read_settings(tmp_path).sections
    assert KubernetesSettings.from_mapping(sections["kubernetes"]).of_context("any").namespace == "training"


@needs_helm
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"imagee": "x"}, "imagee"),
        ({"storage": "much"}, "storage"),
        ({"config": {"listen": {"port": 1}}}, "config"),
        ({"kubernetes": {"namespace": "x"}}, "kubernetes"),
        ({"replicas": 2}, "database"),
        ({"replicas": 2, "database": {"secret": "d", "keyringSecret": "k"}}, "tls"),
        ({"database": {"secret": "d"}}, "keyringSecret"),
        ({"replicas": 0}, "replicas"),
    ],
)
def test_values__that_the_chart_does_not_know_are_refused(values: dict[str, Any], words: str) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError, match=words):
        chart.validate_schema(values)


@needs_helm
def test_chart__with_several_controllers_shares_database_keys_and_certificate() -> None:
    objects_of = {one["kind"]: one for one in objects(rendered("controller.yaml", **VALUES["several controllers"]))}
    stateful_set = objects_of["StatefulSet"]["spec"]
    assert stateful_set["replicas"] == 3
    assert "volumeClaimTemplates" not in stateful_set, "one that moves to another node must not wait for a volume"
    spec = stateful_set["template"]["spec"]
    (controller,) = spec["containers"]
    assert controller["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "perdure-database", "key": "url"}
    mounted = {one["name"] for one in controller["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["volumes"]} - {"config"} == {"state", "tmp", "keyring", "tls"}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= controller.keys()
    assert controller["securityContext"]["readOnlyRootFilesystem"] is True
    assert objects_of["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    spread = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    assert spread["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


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
