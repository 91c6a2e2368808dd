"""Tasks that mount buckets run only on clouds whose machines can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.mount_limits import able_to_mount
from perdure.sdk import Task
from perdure.sdk.requirements import candidates

MOUNT = {"path": "/data", "mode": "MOUNT"}
CACHED = {"path": "/ckpt", "mode": "MOUNT_CACHED"}


class PodCloud(FakeCloud):
    """A cloud that mounts nothing, unless the task's settings or the region allow it."""

    def mount_problem(
        self, region: str | None, settings: Mapping[str, Any], *, mode: str, num_nodes: int
    ) -> str | None:
        is_able = settings.get("fuse") or region == "able" or (mode == "MOUNT_CACHED" and num_nodes == 1)
        return None if is_able else "pods have no FUSE"


def clouds_of(resources: str, *, mount: dict[str, str] = MOUNT, **settings: Any) -> list[str | None]:
    clouds = {name: FakeCloud(ManualClock(), name=name) for name in ("aws", "gcp")}
    clouds["kubernetes"] = PodCloud(ManualClock(), name="kubernetes")
    task = Task.from_yaml_str(f"run: x\nresources: {resources}\n")
    num_nodes = settings.pop("num_nodes", 1)
    mounts = [mount, *settings.pop("more", [])]
    left = able_to_mount(candidates(task.resources), mounts, clouds, {"kubernetes": settings}, num_nodes=num_nodes)
    return [placement.requirement.cloud for placement in left]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("{cpus: 4}", ["aws", "gcp"]),
        ("{infra: aws}", ["aws"]),
        ("{infra: k8s/able}", ["kubernetes"]),
        ("{any_of: [{infra: k8s}, {infra: gcp}]}", ["gcp"]),
    ],
)
def test_mount__leaves_the_clouds_that_can(resources: str, expected: list[str]) -> None:
    assert clouds_of(resources) == expected


def test_copy__is_possible_everywhere() -> None:
    assert clouds_of("{infra: k8s}", mount={"path": "/data", "mode": "COPY"}) == ["kubernetes"]


def test_mount__is_possible_with_settings_that_allow_it() -> None:
    assert clouds_of("{infra: k8s}", fuse=True) == ["kubernetes"]
    assert clouds_of("{cpus: 4}", fuse=True) == [None]


def test_mount__that_no_cloud_can_make_is_refused() -> None:
    with pytest.raises(RequestRejected, match="MOUNT cannot be used here: pods have no FUSE") as caught:
        clouds_of("{infra: k8s}")
    assert caught.value.where == "file_mounts[/data].mode"
    assert "mode: COPY" in caught.value.fix


def test_mount__is_judged_by_its_mode_and_the_number_of_nodes() -> None:
    assert clouds_of("{infra: k8s}", mount=CACHED) == ["kubernetes"]
    with pytest.raises(RequestRejected, match="MOUNT_CACHED cannot be used here"):
        clouds_of("{infra: k8s}", mount=CACHED, num_nodes=2)


@pytest.mark.parametrize("order", [(MOUNT, CACHED), (CACHED, MOUNT)])
def test_mounts__of_different_modes_must_all_be_possible(order: tuple[dict[str, str], dict[str, str]]) -> None:
    assert clouds_of("{cpus: 4}", mount=order[0], more=[order[1]]) == ["aws", "gcp"]
    with pytest.raises(RequestRejected, match=r"MOUNT cannot be used here"):
        clouds_of("{infra: k8s}", mount=order[0], more=[order[1]])
