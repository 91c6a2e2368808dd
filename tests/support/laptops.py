"""A user's own machine, whose commands go to the controller that `perdure controller up` brought up elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controllers import Controller
from perdure.sdk import hosted
from perdure.sdk.client import Client

HOSTED_PATIENCE_S = 600.0
"""A hosted controller's machine boots, fetches what it needs and installs it."""


class Laptop(Controller):
    """`client` speaks with the controller that is up; `record`: what this machine keeps of it."""

    @property
    def client(self) -> Client:
        endpoint = hosted.serving(self.home)
        assert endpoint is not None, "no controller is up"
        return Client(endpoint)

    @property
    def record(self) -> hosted.Hosted:
        found = hosted.read(self.home)
        assert found is not None, "no controller is up"
        return found


@contextlib.contextmanager
def a_cloud(fake: Any, tmp_path: Path) -> Iterator[Any]:
    """A cloud of the tests' own (`FakeEc2`, …), and the environment that leads there. Its machines do not see the
    laptop's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controllers.PATIENCE_S", HOSTED_PATIENCE_S)
        (tmp_path / "home").mkdir()
        with fake(tmp_path / "cloud", hidden=tmp_path / "home") as cloud:
            for name, value in cloud.environ.items():
                patch.setenv(name, value)
            yield cloud


def a_laptop(cloud: Any, tmp_path: Path) -> Laptop:
    """One that knows `cloud`, and no controller yet."""
    (tmp_path / "home" / "config.yaml").write_text(cloud.config)
    return Laptop(tmp_path / "home", cloud.environ)
