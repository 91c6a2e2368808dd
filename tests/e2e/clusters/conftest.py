"""A controller per module, for its clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.helpers.clusters import Clusters, running_clusters


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with running_clusters(tmp_path_factory.mktemp("home")) as one:
        yield one
