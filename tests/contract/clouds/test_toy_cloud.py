"""The example `examples/toy_cloud`: once its package is installed, Perdure finds it, and it fulfils the contract."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.controller.clouds import registry
from perdure.controller.clouds.contract_suite import CloudBench, CloudContract
from perdure.controller.runtime.clock import SystemClock
from support.helpers import cloud_packages

EXAMPLE = Path(__file__).parents[3] / "examples/toy_cloud"
MAX_LINES = 150


@pytest.fixture
def toy_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    modules = {"toy_cloud": (EXAMPLE / "toy_cloud.py").read_text()}
    clouds = project["entry-points"]["perdure.clouds"]
    cloud_packages.install(tmp_path / "site", monkeypatch, package=project["name"], modules=modules, clouds=clouds)


class TestToyCloud(CloudContract):
    @pytest.fixture
    def bench(self, toy_package: None, tmp_path: Path) -> Iterator[CloudBench]:
        cloud = registry.build_clouds({"toy": {"capacity": 3}}, tmp_path / "home", SystemClock())["toy"]
        with CloudBench(cloud, set_capacity=cloud.capacity.__setitem__) as bench:  # type: ignore[attr-defined]
            yield bench


def test_toy_cloud__is_short() -> None:
    assert len((EXAMPLE / "toy_cloud.py").read_text().splitlines()) <= MAX_LINES
