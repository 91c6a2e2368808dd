"""Whether machines of a cloud can reach this controller: a machine that cannot is paid for and does nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from perdure.controller.clouds import registry

log = structlog.get_logger(__name__)

NEVER_CALLED = "MachinesNeverCalled"
"""The code of an unavailable offer that holds a cloud because its machines never call (`reconcile.boot_failures`)."""

_FIX = (
    "set listen.advertise in {} to a URL that they reach and that leads here, or let `perdure controller up` run a "
    "controller in the cloud"
)


def remote_clouds(sections: Mapping[str, object]) -> frozenset[str]:
    """The configured clouds whose machines call over a network."""
    return frozenset(name for name, one in registry.descriptors().items() if one.is_remote and name in sections)


def report_unreachable(
    sections: Mapping[str, object], endpoint: str, is_advertised: bool, home: Path
) -> dict[str, str]:
    """The configured clouds whose machines cannot reach `endpoint`: why, and what to do. Logs them.

    `is_advertised`: the endpoint is `listen.advertise`. A private address is then taken for one of the machines' own
    network; a wildcard or a loopback address leads them nowhere in any case.
    """
    problem = _problem(endpoint, is_advertised=is_advertised)
    if problem is None:
        return {}
    fix = _FIX.format(home / "config.yaml")
    reason = f"its machines cannot reach this controller at {endpoint}, {problem}: {fix}"
    names = [name for name in sorted(remote_clouds(sections)) if not _has_own_way(sections[name])]
    for name in names:
        log.error("cloud.unreachable", cloud=name, reason=reason)
    return dict.fromkeys(names, reason)


def _problem(endpoint: str, *, is_advertised: bool) -> str | None:
    host = urlsplit(endpoint).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return "which is their own loopback address"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None  # a name, which may mean anything to them
    if address.is_unspecified:
        return "which is a wildcard address"
    if address.is_loopback:
        return "which is their own loopback address"
    if (address.is_private or address.is_link_local) and not is_advertised:
        return "which is a private address; if it belongs to their network, say so by setting listen.advertise to it"
    return None


def _has_own_way(section: object) -> bool:
    """Whether the cloud's machines do not need the endpoint: they run on this computer, or have a URL of their own."""
    if not isinstance(section, Mapping):
        return False
    url = section.get("endpoint_url")
    is_here = isinstance(url, str) and _problem(url, is_advertised=True) is not None
    return is_here or isinstance(section.get("controller_url"), str)
