"""Computers on which the documents' commands are typed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seeds.image import Computer, computer

# The documents' GPUs, which the local cloud simulates.
CONFIG = "local: {accelerators: {L4: 4, V100: 4, T4: 1, A100: 4, A100-80GB: 8, H100: 8}}\n"


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Computer]:
    """A computer with the local cloud alone. Tests share it, and end what they launch."""
    with computer(tmp_path_factory.mktemp("seeds"), CONFIG) as one:
        yield one
