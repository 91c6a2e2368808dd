"""Cloud calls for a controller's machine: what the user sees when they fail."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.base.protocol import EventuallyConsistent
from perdure.controller.clouds.fake import FakeCloud, FakeError
from perdure.controller.hosting import retry
from perdure.controller.runtime.clock import ManualClock


def test_call_once__missing_permission_names_the_file_of_permissions() -> None:
    cloud = FakeCloud(ManualClock())
    cloud.name = "gcp"

    def fail() -> None:
        raise FakeError("BadCredentials", "no")

    with pytest.raises(
        retry.CannotHost, match=r"creating the disk: .*no; .*needs the permissions that deploy/iam/gcp-up\.yaml lists"
    ):
        retry.call_once("creating the disk", cloud, fail)


def test_call_until_ready__timeout_names_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MACHINE_TIMEOUT_S", 0.0)

    def fail() -> None:
        raise EventuallyConsistent("the disk is not ready yet")

    with pytest.raises(
        retry.CannotHost, match="launching the machine: the disk is not ready yet; run the command again"
    ):
        retry.call_until_ready("launching the machine", FakeCloud(ManualClock()), fail, pause_s=0.0)
