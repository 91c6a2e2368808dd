"""A user's computer whose commands use the controller that `perdure controller up` created elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from perdure.sdk.connection import hosted_controller
from perdure.sdk.connection.client import Client
from support.helpers.controllers import Controller

HOSTED_TIMEOUT_S = 600.0
"""The host boots, downloads packages and installs them."""


class FakeCloud(Protocol):
    """`environ`: leads SDKs to this cloud. `config`: its section of config.yaml."""

    @property
    def environ(self) -> Mapping[str, str]: ...

    @property
    def config(self) -> str: ...


Cloud = TypeVar("Cloud", bound=FakeCloud)


class Laptop(Controller):
    """`client` calls the hosted controller; `record` is what this computer stores about it."""

    @property
    def client(self) -> Client:
        endpoint = hosted_controller.serving_endpoint(self.home)
        assert endpoint is not None, "no controller is up"
        return Client(endpoint)

    @property
    def record(self) -> hosted_controller.Hosted:
        found = hosted_controller.load(self.home)
        assert found is not None, "no controller is up"
        return found


@contextlib.contextmanager
def fake_cloud_for_host(
    fake: Callable[..., contextlib.AbstractContextManager[Cloud]], tmp_path: Path
) -> Iterator[Cloud]:
    """A fake cloud (`FakeEc2`, …) and the environment that leads to it. Its machines cannot see the laptop's home."""
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "home").mkdir()
        with fake(tmp_path / "cloud", hidden=tmp_path / "home") as cloud:
            for name, value in cloud.environ.items():
                patch.setenv(name, value)
            yield cloud


def laptop_for(cloud: FakeCloud, tmp_path: Path) -> Laptop:
    """A laptop with `cloud` configured and without a controller."""
    (tmp_path / "home" / "config.yaml").write_text(cloud.config)
    return Laptop(tmp_path / "home", cloud.environ, timeout_s=HOSTED_TIMEOUT_S)
