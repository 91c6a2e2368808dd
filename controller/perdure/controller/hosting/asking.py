"""Asking a cloud for what a controller's machine takes: until it is there, or refused, in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Any, Protocol, TypeVar, cast

from perdure.controller.clouds.base import Cloud, Hosting, NotYet
from perdure.recovery.reasons import Reason

MACHINE_S = 600.0
LOOK_S = 0.5
# What who brings a controller up is to be allowed, beside what the controller is.
_UP = {"aws": "deploy/iam/aws-up.json", "gcp": "deploy/iam/gcp-up.yaml", "azure": "deploy/iam/azure-up.json"}

T = TypeVar("T")


class HostingCloud(Cloud, Hosting, Protocol):
    """Both."""


class CannotHost(Exception):
    """What was asked for could not be done. The text says what to do."""


def step(doing: str, cloud: Cloud, do: Callable[[], T], *, pause_s: float = LOOK_S, if_full: str = "") -> T:
    """What it gives, once it is no longer NotYet. Raises CannotHost."""
    done: list[T] = []
    said = [""]

    def once() -> bool:
        try:
            done.append(asked(doing, cloud, do, if_full=if_full))
        except NotYet as not_yet:
            said[0] = str(not_yet)
        return bool(done)

    until(once, MACHINE_S, lambda: f"{doing}: {said[0]}; do it again", pause_s)
    return done[0]


def asked(doing: str, cloud: Cloud, do: Callable[[], T], *, if_full: str = "") -> T:
    """Raises CannotHost for what the cloud refuses; NotYet. `if_full`: what to do when there is no room."""
    try:
        return do()
    except (CannotHost, NotYet):
        raise
    except Exception as error:
        fault = cloud.classify(error)
        what_to_do = if_full if fault.reason is Reason.NO_CAPACITY else ""
        if fault.reason is Reason.BAD_CREDENTIALS and (beside := _UP.get(cloud.name)):
            what_to_do = f"who brings a controller up needs what {beside} lists, too"
        raise CannotHost("; ".join(part for part in (f"{doing}: {fault.message}", what_to_do) if part)) from error


def hosting(cloud: Cloud) -> HostingCloud:
    """`configuring.cloud_of` gives no other."""
    assert isinstance(cloud, Hosting)
    return cast("HostingCloud", cloud)


def until(ask: Callable[[], Any], patience_s: float, in_vain: str | Callable[[], str], pause_s: float = LOOK_S) -> Any:
    give_up_at, pause = monotonic() + patience_s, Event()
    while not (answer := ask()):
        if monotonic() > give_up_at:
            raise CannotHost(f"{in_vain if isinstance(in_vain, str) else in_vain()} (for {patience_s:.0f} s)")
        pause.wait(pause_s)
    return answer
