"""A local cloud whose agents are scripts of the test, and functions that inspect its machines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.local_cloud.sites import CONTROLLER, Mounts, OpenSite, RunElsewhere, Site, wait_for
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.runtime.clock import SystemClock
from support.helpers.timing import scaled


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[OpenSite]:
    sites: list[Site] = []

    def open_one(isolation: str = "auto", folder: Path = tmp_path, **settings: Any) -> Site:
        home = folder / f"home-{len(sites)}"
        home.mkdir()
        mapping = {"isolation": isolation, **settings}
        sites.append(Site(home, LocalCloud(home, LocalSettings.from_mapping(mapping), SystemClock())))
        return sites[-1]

    yield open_one
    for site in sites:
        living = site.cloud.list_owned(CONTROLLER)
        for instance in living:
            site.cloud.terminate(instance.region, [instance.id])
        wait_for(lambda: not site.hosts())  # noqa: B023


@pytest.fixture(params=["overlay", "bind", "processes"])
def site(request: pytest.FixtureRequest, open_site: OpenSite) -> Site:
    """A site per kind of isolation that this computer supports."""
    if request.param != "processes" and not can_have(open_site, request.param):
        pytest.skip(f"no {request.param} machines on this computer")
    return open_site(request.param)


@pytest.fixture(params=["overlay", "bind"])
def apart(request: pytest.FixtureRequest, open_site: OpenSite) -> Site:
    """A site whose machines have their own file systems and processes."""
    if not can_have(open_site, request.param):
        pytest.skip(f"no {request.param} machines on this computer")
    return open_site(request.param)


_had: dict[str, bool] = {}


def can_have(open_site: OpenSite, kind: str) -> bool:
    if kind not in _had:
        best = open_site().cloud.isolation()
        _had["overlay"] = best == "overlay"
        # Where overlays work, bind mounts work too; where they do not, the best kind is known.
        _had["bind"] = best in ("overlay", "bind")
    return _had[kind]


@pytest.fixture
def mounts(tmp_path: Path) -> Mounts:
    """This computer's mounts at or from paths below the test's folder."""
    return lambda: [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp_path) in line]


@pytest.fixture
def run_elsewhere() -> RunElsewhere:
    """Run Python code in a separate process, as a daemon that ends."""

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=scaled(60)
        )

    return run
