"""A container that its kubelet could not start yet is no failure of the task; a mistake that no retry mends is."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.clouds.kubernetes.pods.status import start_problem, status_of
from perdure.recovery.reasons import Reason


def pod(reason: str, message: str) -> dict[str, Any]:
    waiting = {"name": "perdure", "image": "python:3.12", "state": {"waiting": {"reason": reason, "message": message}}}
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": [{"name": "perdure"}]},
        "status": {"phase": "Pending", "containerStatuses": [waiting]},
    }


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition"),
        ("CreateContainerError", "context deadline exceeded"),
        ("RunContainerError", "context deadline exceeded"),
    ],
)
def test_failed_start__that_a_retry_may_mend_is_pending(reason: str, message: str) -> None:
    one = pod(reason, message)
    assert status_of(one).state is InstanceState.PENDING
    problem = start_problem(one)
    assert problem is not None
    assert message in problem.message


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("CreateContainerConfigError", 'secret "registry-key" not found'),
        ("CreateContainerConfigError", "couldn't find key token in Secret training/registry-key"),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
        ("RunContainerError", 'exec: "/bin/sh": executable file not found in $PATH'),
        ("InvalidImageName", "couldn't parse image reference"),
        ("ImagePullBackOff", 'pulling image "no/such": not found'),
    ],
)
def test_failed_start__that_no_retry_mends_fails_the_task(reason: str, message: str) -> None:
    status = status_of(pod(reason, message))
    assert status.state is InstanceState.GONE
    assert status.end is not None
    assert status.end.reason is Reason.PRECHECKS_FAILED


def test_start_problem__is_none_for_other_waits() -> None:
    assert start_problem(pod("ContainerCreating", "")) is None
    assert start_problem(pod("ImagePullBackOff", "connection reset")) is None
