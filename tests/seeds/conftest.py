"""Computers on which the documents' commands are typed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from seeds.image import Computer, computer

# The documents' GPUs, which the local cloud simulates.
CONFIG = "local: {accelerators: {L4: 4, V100: 4, T4: 1, A100: 4, A100-80GB: 8, H100: 8}}\n"


@pytest.fixture(scope="session")
def shared_computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Computer]:
    """A computer with the local cloud alone."""
    with computer(tmp_path_factory.mktemp("seeds"), CONFIG) as one:
        yield one


@pytest.fixture(scope="module")
def local(shared_computer: Computer, request: pytest.FixtureRequest) -> Computer:
    """That computer, with a project folder of this module. Tests end what they launch."""
    user = shared_computer.user
    project = user.project / request.module.__name__.rpartition(".")[2]
    project.mkdir()
    return replace(shared_computer, user=replace(user, project=project))
