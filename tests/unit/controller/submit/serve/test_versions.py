"""Which versions of a service can share their machines, or even their programs."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.submit.serve.versions import fit_the_same_machines, run_the_same

TASK: dict[str, Any] = {
    "service": {"readiness_probe": {"path": "/up"}, "replicas": 2},
    "resources": {"ports": [8080], "cpus": "4"},
    "setup": "pip install x",
    "run": "serve",
    "envs": {"A": "1"},
    "workdir": {"upload": "0" * 64},
    "file_mounts": {"/code": {"upload": "1" * 64}, "/data": {"source": "s3://bucket", "mode": "MOUNT"}},
}


@pytest.mark.parametrize(
    ("change", "machines", "programs"),
    [
        ({}, True, True),
        ({"service": {"readiness_probe": {"path": "/up"}, "replicas": 5}}, True, True),
        ({"service": {"readiness_probe": {"path": "/ready"}, "replicas": 2}}, True, False),
        ({"run": "serve --faster"}, True, False),
        ({"setup": None}, True, False),
        ({"envs": {"A": "2"}}, True, False),
        ({"secrets": {"TOKEN": "t"}}, True, False),
        ({"workdir": {"upload": "2" * 64}}, True, False),
        ({"workdir": {"url": "https://example.org/x.git"}}, True, False),
        ({"file_mounts": {**TASK["file_mounts"], "/code": {"upload": "3" * 64}}}, True, False),
        ({"file_mounts": {"/data": TASK["file_mounts"]["/data"]}}, True, False),
        ({"file_mounts": {"/data": {"source": "s3://other", "mode": "MOUNT"}}}, False, False),
        ({"file_mounts": None}, False, False),
        ({"resources": {"ports": [8080], "cpus": "8"}}, False, False),
        ({"resources": {"ports": [9090], "cpus": "4"}}, False, False),
        ({"config": {"hooks": []}}, False, False),
    ],
)
def test_versions__share_what_they_can(change: dict[str, Any], machines: bool, programs: bool) -> None:
    other = {**TASK, **change}
    assert fit_the_same_machines(TASK, other) is fit_the_same_machines(other, TASK) is machines
    assert run_the_same(TASK, other, on_spot=False) is programs
