"""A controller that knows one real cloud: a Compute Engine of the tests' own, whose machines really run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from on_clouds import OnClouds, on_clouds


@pytest.fixture
def on_gce(tmp_path: Path) -> Iterator[OnClouds]:
    with on_clouds(tmp_path, "gcp") as one:
        yield one
