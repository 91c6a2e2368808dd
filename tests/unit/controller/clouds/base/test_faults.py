"""Messages of connection errors, without the names of Python objects."""

from __future__ import annotations

import socket

import pytest
import requests
import urllib3

from perdure.controller.clouds.base.account_checks import Check, Severity, run_checks
from perdure.controller.clouds.base.faults import readable, to_fault


@pytest.fixture
def closed_port() -> int:
    """A port of this computer on which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_readable__of_a_refused_connection(closed_port: int) -> None:
    url, expected = f"http://127.0.0.1:{closed_port}/x", f"cannot reach 127.0.0.1:{closed_port}: Connection refused"
    with pytest.raises(requests.ConnectionError) as from_requests:
        requests.get(url, timeout=5)
    with pytest.raises(urllib3.exceptions.NewConnectionError) as from_urllib3:
        urllib3.PoolManager(retries=False).request("GET", url)
    assert readable(str(from_requests.value)) == readable(str(from_urllib3.value)) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "HTTPSConnectionPool(host='compute.example.org', port=443): Max retries exceeded with url: /compute/v1 "
            "(Caused by NameResolutionError(\"HTTPSConnection(host='compute.example.org', port=443): Failed to resolve "
            "'compute.example.org' ([Errno -2] Name or service not known)\"))",
            "cannot reach compute.example.org:443: Failed to resolve 'compute.example.org'",
        ),
        (
            "HTTPSConnectionPool(host='a.example.org', port=443): Read timed out. (read timeout=30)",
            "cannot reach a.example.org:443: Read timed out",
        ),
        (
            "<urllib3.connection.HTTPSConnection object at 0x7f0a>: Failed to establish a new connection: [Errno 101] "
            "Network is unreachable",
            "cannot reach the cloud: Network is unreachable",
        ),
        ("Quota 'CPUS' exceeded. Limit: 24.0", "Quota 'CPUS' exceeded. Limit: 24.0"),
    ],
)
def test_readable__names_host_and_cause(message: str, expected: str) -> None:
    assert readable(message) == expected


def test_checks__of_an_unreachable_cloud_do_not_blame_the_credentials(closed_port: int) -> None:
    def look() -> list[object]:
        raise requests.ConnectionError(f"HTTPConnectionPool(host='h', port={closed_port}): Max retries exceeded")

    (finding,) = run_checks(
        Check("credentials", look, "correct the credentials"), [], lambda error: to_fault(None, "x", str(error))
    )
    assert finding.severity is Severity.UNKNOWN
    assert finding.text == f"could not be checked: cannot reach h:{closed_port}: the connection failed"
    assert "network" in (finding.fix or "")
