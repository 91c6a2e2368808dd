"""`resources.ports` of a cluster, and `perdure status --endpoints`."""

from __future__ import annotations

import urllib.request

import pytest

from perdure.sdk import Resources
from support.helpers.clusters import Clusters

pytestmark = pytest.mark.slow


def test_endpoints__are_the_addresses_of_the_ports_that_are_open(sky: Clusters) -> None:
    perdure = sky.controller.perdure
    chosen = Resources(cpus=1, infra="local", ports=[8765, "9000-9001"])
    launched = sky.launch("web", resources=[chosen, Resources(cpus=2, infra="local", ports=22)])
    assert not [line for line in launched.warnings if "ports" in line]
    number = sky.exec("web", "echo page > index.html; python3 -m http.server 8765")
    sky.until("web", number, "RUNNING")
    lines = perdure("status", "web", "--endpoints").stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["8765", "9000-9001"]
    address = perdure("status", "web", "--endpoint", 8765).stdout.strip()
    assert f"8765: {address}" == lines[0]

    def page() -> bytes:
        try:
            with urllib.request.urlopen(f"http://{address}/index.html", timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            return b""

    sky.controller.until(lambda: page() == b"page\n", "the page of the server")
    closed = perdure("status", "web", "--endpoint", 22, check=False)
    assert closed.returncode != 0
    assert "perdure port-forward web 22" in closed.stderr
    perdure("down", "web", "--yes")
