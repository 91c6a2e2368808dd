"""Repeats cloud calls for a controller's machine until they succeed or are rejected with an error for the user."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Any, Protocol, TypeVar, cast

from perdure.controller.clouds import registry
from perdure.controller.clouds.base.protocol import Cloud, EventuallyConsistent, Hosting
from perdure.recovery.reasons import Reason

MACHINE_TIMEOUT_S = 600.0
POLL_INTERVAL_S = 0.5

T = TypeVar("T")


class HostingCloud(Cloud, Hosting, Protocol):
    """A cloud that can host a controller."""


class CannotHost(Exception):
    """The request could not be fulfilled. The text says what to do."""


def call_until_ready(
    doing: str, cloud: Cloud, call: Callable[[], T], *, pause_s: float = POLL_INTERVAL_S, if_full: str = ""
) -> T:
    """Repeat `call` while it raises EventuallyConsistent, and return its result. Raises CannotHost."""
    results: list[T] = []
    last_error = [""]

    def once() -> bool:
        try:
            results.append(call_once(doing, cloud, call, if_full=if_full))
        except EventuallyConsistent as not_yet:
            last_error[0] = str(not_yet)
        return bool(results)

    wait_until(once, MACHINE_TIMEOUT_S, lambda: f"{doing}: {last_error[0]}; run the command again", pause_s)
    return results[0]


def call_once(doing: str, cloud: Cloud, call: Callable[[], T], *, if_full: str = "") -> T:
    """Make a cloud call. `if_full`: what the user can do about missing capacity.

    Raises CannotHost for a call that the cloud rejects, and EventuallyConsistent.
    """
    try:
        return call()
    except (CannotHost, EventuallyConsistent):
        raise
    except Exception as error:
        fault = cloud.classify(error)
        what_to_do = if_full if fault.reason is Reason.NO_CAPACITY else ""
        hosting = registry.hosting_support(cloud.name)
        if fault.reason is Reason.BAD_CREDENTIALS and hosting and hosting.permissions_file:
            what_to_do = f"`controller up` also needs the permissions that {hosting.permissions_file} lists"
        raise CannotHost("; ".join(part for part in (f"{doing}: {fault.message}", what_to_do) if part)) from error


def require_hosting(cloud: Cloud) -> HostingCloud:
    """The cloud with its hosting methods. `config.hosting_cloud` returns no other kind of usable cloud."""
    assert isinstance(cloud, Hosting)
    return cast("HostingCloud", cloud)


def wait_until(
    poll: Callable[[], Any], timeout_s: float, problem: str | Callable[[], str], pause_s: float = POLL_INTERVAL_S
) -> Any:
    """Call `poll` until its result is true, and return that. Raises CannotHost with `problem` after `timeout_s`."""
    give_up_at, pause = monotonic() + timeout_s, Event()
    while not (result := poll()):
        if monotonic() > give_up_at:
            raise CannotHost(f"{problem if isinstance(problem, str) else problem()} (for {timeout_s:.0f} s)")
        pause.wait(pause_s)
    return result
