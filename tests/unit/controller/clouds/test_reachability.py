"""A cloud whose machines cannot reach the controller is not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.clouds.reachability import report_unreachable

HOME = Path("/home/me/.perdure")


def unreachable(endpoint: str, *, is_advertised: bool = False, **sections: object) -> dict[str, str]:
    return report_unreachable(sections or {"aws": {}}, endpoint, is_advertised, HOME)


@pytest.mark.parametrize("is_advertised", [False, True])
@pytest.mark.parametrize(
    "endpoint",
    [
        "https://0.0.0.0:8443",
        "https://[::]:8443",
        "http://127.0.0.1:8700",
        "http://127.0.1.1:8700",
        "https://[::1]:8443",
        "http://localhost:8700",
    ],
)
def test_wildcard_or_loopback__leads_no_machine_to_the_controller(endpoint: str, is_advertised: bool) -> None:
    (reason,) = unreachable(endpoint, is_advertised=is_advertised).values()
    assert endpoint in reason
    assert "listen.advertise in /home/me/.perdure/config.yaml" in reason


@pytest.mark.parametrize("endpoint", ["https://10.0.0.5:8443", "https://192.168.1.2:8443", "https://[fd00::5]:8443"])
def test_private_address__is_used_only_if_it_is_advertised(endpoint: str) -> None:
    (reason,) = unreachable(endpoint).values()
    assert "private" in reason
    assert unreachable(endpoint, is_advertised=True) == {}


@pytest.mark.parametrize("endpoint", ["https://perdure.example.com", "https://8.8.8.8:8443", "https://[2600::1]:8443"])
def test_public_endpoint__is_used(endpoint: str) -> None:
    assert unreachable(endpoint) == {}


def test_cloud__that_is_not_remote_is_used() -> None:
    url = "http://127.0.0.1:8700"
    assert unreachable(url, local={"zones": 3}) == {}
    assert unreachable(url, aws={"endpoint_url": "http://127.0.0.1:4566"}) == {}
    assert list(unreachable(url, local={}, aws={}, gcp=None, azure={"regions": ["eastus"]})) == ["aws", "azure", "gcp"]
    assert list(unreachable(url, aws={"endpoint_url": "https://ec2.internal.example.com"})) == ["aws"]
