"""`pod_config` is merged by SkyPilot's rules, mistakes are named, and the misprinted EFA block keeps its GPUs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.kubernetes.pods import pod_config

TASKS = Path(__file__).parents[4] / "sdk/tasks"
POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}, "annotations": {"x": "1"}},
    "spec": {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            {
                "name": "perdure",
                "image": "python",
                "command": ["sh"],
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}},
            }
        ],
    },
}
OWN = POD["spec"]["containers"][0]


def merged(text: str) -> dict[str, Any]:
    config = yaml.safe_load(text)
    pod_config.check(config, "pod_config")
    before = copy.deepcopy(POD)
    result = pod_config.merged(POD, config)
    assert before == POD, "the template is not changed"
    return dict(result)


def spec_with(**more: Any) -> dict[str, Any]:
    return {**POD["spec"], **more}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "metadata: {labels: {a: '2', b: '3'}}",
            {**POD, "metadata": {**POD["metadata"], "labels": {"a": "2", "b": "3"}}},
        ),
        ("metadata: {annotations: null}", {**POD, "metadata": {"labels": {"a": "1"}}}),
        ("spec: {priorityClassName: low}", {**POD, "spec": spec_with(priorityClassName="low")}),
        (
            "spec: {tolerations: [{key: gpu, operator: Exists}]}",
            {**POD, "spec": spec_with(tolerations=POD["spec"]["tolerations"] * 2)},
        ),
        (
            "spec: {volumes: [{name: shm, emptyDir: {sizeLimit: 1Gi}}]}",
            {**POD, "spec": spec_with(volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}])},
        ),
        (
            "spec: {imagePullSecrets: [{name: a}]}",
            {**POD, "spec": spec_with(imagePullSecrets=[{"name": "a"}])},
        ),
        ("spec: {containers: [{image: other}]}", {**POD, "spec": spec_with(containers=[{**OWN, "image": "other"}])}),
        (
            "spec: {containers: [{name: ray-node, image: other}]}",
            {**POD, "spec": spec_with(containers=[{**OWN, "image": "other"}])},
        ),
        (
            "spec: {containers: [{name: side, image: other}]}",
            {**POD, "spec": spec_with(containers=[OWN, {"name": "side", "image": "other"}])},
        ),
        (
            "spec: {containers: [{command: [bash]}]}",
            {**POD, "spec": spec_with(containers=[{**OWN, "command": ["bash"]}])},
        ),
        (
            "spec: {containers: [{env: [{name: A, value: '2'}, {name: B, value: '3'}]}]}",
            {
                **POD,
                "spec": spec_with(
                    containers=[{**OWN, "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}]
                ),
            },
        ),
        (
            "spec: {containers: [{volumeMounts: [{mountPath: /dev/shm, readOnly: true}, {name: d, mountPath: /d}]}]}",
            {
                **POD,
                "spec": spec_with(
                    containers=[
                        {
                            **OWN,
                            "volumeMounts": [
                                {"name": "shm", "mountPath": "/dev/shm", "readOnly": True},
                                {"name": "d", "mountPath": "/d"},
                            ],
                        }
                    ]
                ),
            },
        ),
        (
            "spec: {containers: [{resources: null}]}",
            {**POD, "spec": spec_with(containers=[{k: v for k, v in OWN.items() if k != "resources"}])},
        ),
        ("spec: {hostAliases: [{ip: 1.2.3.4}]}", {**POD, "spec": spec_with(hostAliases=[{"ip": "1.2.3.4"}])}),
    ],
)
def test_merge__follows_skypilots_rules(text: str, expected: dict[str, Any]) -> None:
    assert merged(text) == expected


@pytest.mark.parametrize("layers", [[{"spec": {"nodeName": "a"}}, {"spec": {"nodeName": "b"}}, {}]])
def test_merge__of_layers_lets_the_last_win(layers: list[dict[str, Any]]) -> None:
    result: dict[str, Any] = {}
    for layer in layers:
        result = pod_config.merged(result, layer)
    assert result == {"spec": {"nodeName": "b"}}


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("spec: {containerz: []}", "pod_config.spec.containerz", "no such field"),
        ("spec: {containers: [{imagePolicy: x}]}", "pod_config.spec.containers[0].imagePolicy", "no such field"),
        ("spec: {containers: {image: x}}", "pod_config.spec.containers", "a mapping where a list is needed"),
        ("spec: {hostNetwork: 'yes'}", "pod_config.spec.hostNetwork", "'yes' is not of type boolean"),
        ("spec: {priority: high}", "pod_config.spec.priority", "'high' is not of type integer"),
        ("status: {}", "pod_config.status", "no such field"),
        ("metadata: {name: x}", "pod_config.metadata.name", "is set by Perdure"),
        ("metadata: {labels: {a: 1}}", "pod_config.metadata.labels.a", "1 is not of type string"),
    ],
)
def test_mistake__is_named(text: str, where: str, message: str) -> None:
    with pytest.raises(SectionError) as mistake:
        merged(text)
    assert (mistake.value.where, mistake.value.message) == (where, message)


def test_merge__of_different_kinds_is_a_mistake() -> None:
    with pytest.raises(SectionError, match="a list where the pod has a mapping"):
        pod_config.merged({"spec": {"affinity": {}}}, {"spec": {"affinity": []}})


EFA = {"vpc.amazonaws.com/efa": 32}
RIGHT = {"spec": {"containers": [{"resources": {"limits": EFA, "requests": EFA}}]}}
MISPRINTED = {"spec": {"containers": [{"resources": None, "limits": EFA, "requests": EFA}]}}


@pytest.mark.parametrize(("config", "num_warnings"), [(RIGHT, 0), (MISPRINTED, 1)], ids=["right", "misprinted"])
def test_efa_block__keeps_the_gpus(config: dict[str, Any], num_warnings: int) -> None:
    repaired, warnings = pod_config.repaired(config)
    pod_config.check(repaired, "pod_config")
    resources = pod_config.merged(POD, repaired)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"nvidia.com/gpu": "8", **EFA}
    assert len(warnings) == num_warnings


def test_efa_block__of_the_training_guide_is_understood() -> None:
    task = yaml.safe_load((TASKS / "efa.yaml").read_text())
    repaired, _ = pod_config.repaired(task["config"]["kubernetes"]["pod_config"])
    pod_config.check(repaired, "pod_config")
    resources = pod_config.merged(POD, repaired)["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == "8"
    assert any("efa" in name for name in resources["limits"])


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({}, False),
        ({"securityContext": {"privileged": False}, "resources": {"limits": {"nvidia.com/gpu": 1}}}, False),
        ({"securityContext": {"privileged": True}}, True),
        ({"resources": {"limits": {"smarter-devices/fuse": 1}}}, True),
        ({"resources": {"requests": {"github.com/fuse": 1}, "limits": None}}, True),
    ],
)
def test_fuse__is_granted_by_privileges_or_a_device(container: dict[str, Any], expected: bool) -> None:
    assert pod_config.grants_fuse({"spec": {"containers": [container]}}) is expected
    assert not pod_config.grants_fuse({})


# What SkyPilot 0.14.1 makes of 48 configurations (`sky.utils.config_utils.merge_k8s_configs`, executed).
SKYPILOT = json.loads((Path(__file__).parents[5] / "data/pod_config_merges.json").read_text())


def without_nulls(value: Any) -> Any:
    """SkyPilot keeps a field that is null; the API server takes that for an absent one."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", SKYPILOT["cases"], ids=[one["config"] for one in SKYPILOT["cases"]])
def test_merge__is_that_of_skypilot(case: dict[str, Any]) -> None:
    config = yaml.safe_load(case["config"])
    pod_config.check(config, "pod_config")
    assert pod_config.merged(SKYPILOT["base"], config) == without_nulls(case["merged"])


@pytest.mark.parametrize("config", SKYPILOT["rejected"])
def test_merge__rejects_what_skypilot_rejects(config: str) -> None:
    with pytest.raises(SectionError):
        pod_config.merged(SKYPILOT["base"], yaml.safe_load(config))
