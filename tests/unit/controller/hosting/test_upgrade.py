"""What an upgrade does for the roles of a controller's machine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perdure.controller.clouds.fake import FakeCloud, FakeError
from perdure.controller.hosting import upgrade
from perdure.controller.runtime.clock import ManualClock


class CloudWithRoles(FakeCloud):
    """`denied`: the caller may not change roles, as permissions for earlier versions of Perdure allow."""

    def __init__(self, *, denied: bool) -> None:
        super().__init__(ManualClock())
        self.denied = denied
        self.renewed: list[str] = []

    def store_settings(self, role: str) -> Mapping[str, Mapping[str, str]]:
        return {}

    def renew_roles(self, role: str) -> None:
        if self.denied:
            raise FakeError("BadCredentials", "not authorized to perform iam:GetRole")
        self.renewed.append(role)


@pytest.mark.parametrize("denied", [False, True])
def test_renew_roles__goes_on_with_a_warning_if_it_is_not_allowed(*, denied: bool) -> None:
    cloud, reported = CloudWithRoles(denied=denied), list[str]()
    upgrade.renew_roles(cloud, "perdure-controller", reported.append)
    assert cloud.renewed == ([] if denied else ["perdure-controller"])
    assert [("Warning" in text, "iam:GetRole" in text) for text in reported] == ([(True, True)] if denied else [])


def test_renew_roles__does_nothing_in_a_cloud_without_them() -> None:
    reported = list[str]()
    upgrade.renew_roles(FakeCloud(ManualClock()), "perdure-controller", reported.append)
    assert reported == []
