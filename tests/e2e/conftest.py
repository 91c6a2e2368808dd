"""A real controller per module, used through the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.helpers.controllers import Controller, ControllerOn, running_controller

CONFIG = "local: {accelerators: {V100: 8}}\n"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(CONFIG)
    with running_controller(home) as one:
        yield one


@pytest.fixture(scope="session")
def controller_on() -> ControllerOn:
    """`running_controller`, for modules that need a controller with other settings."""
    return running_controller
