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


PULL = (
    'failed to pull and unpack image "registry.io/team/train:1": failed to resolve reference "registry.io/team/train:1"'
)
HEAD = "unexpected status from HEAD request to https://registry.io/v2/team/train/manifests/1"
TOKEN = (
    "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://registry.io/t"
)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
@pytest.mark.parametrize(
    "message",
    [
        f"{PULL}: pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed",
        f"{PULL}: {TOKEN}: 401 Unauthorized",
        f"{PULL}: {TOKEN}: 403 Forbidden",
        f"{PULL}: {HEAD}: 403 Forbidden",
        "Error response from daemon: Head https://registry.io/v2/team/train/manifests/1: no basic auth credentials",
    ],
)
def test_private_image__ends_the_task_and_says_where_credentials_go(reason: str, message: str) -> None:
    status = status_of(pod(reason, message))
    assert status.state is InstanceState.GONE
    assert status.end is not None
    assert status.end.reason is Reason.PRECHECKS_FAILED
    assert "imagePullSecrets" in status.end.message
    assert message in status.end.message


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
@pytest.mark.parametrize(
    "message",
    [
        f"{PULL}: {HEAD}: 503 Service Unavailable",
        f"{PULL}: {TOKEN}: 503 Service Unavailable: access denied by the overload rule",
        f"{PULL}: {HEAD}: 502 Bad Gateway",
        f"{PULL}: {HEAD}: 429 Too Many Requests - Server message: toomanyrequests: You have reached your "
        "unauthenticated pull rate limit: denied",
        f"{PULL}: failed to do request: Head https://registry.io/v2/: dial tcp 10.0.0.1:443: i/o timeout",
        f"{PULL}: failed to do request: Head https://registry.io/v2/: dial tcp: lookup registry.io: no such host",
        'Back-off pulling image "registry.io/team/train:1"',
    ],
)
def test_registry_in_trouble__is_waited_for(reason: str, message: str) -> None:
    assert status_of(pod(reason, message)).state is InstanceState.PENDING


def test_missing_image__is_not_blamed_on_credentials() -> None:
    status = status_of(pod("ErrImagePull", f"{PULL}: registry.io/team/train:1: not found"))
    assert status.state is InstanceState.GONE
    assert status.end is not None
    assert "imagePullSecrets" not in status.end.message
