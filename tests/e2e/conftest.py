"""A controller of its own for each module, used through the command line as people do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from controllers import Controller, running_controller

CONFIG = "local: {accelerators: {V100: 8}}\n"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(CONFIG)
    with running_controller(home) as one:
        yield one


@pytest.fixture(scope="session")
def controller_on() -> Callable[..., contextlib.AbstractContextManager[Controller]]:
    """`running_controller`, for modules whose controllers are not like the others."""
    return running_controller
