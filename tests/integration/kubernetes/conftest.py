"""A fake Kubernetes cluster without processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fakes.kube import FakeKube


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as kube:
        yield kube
