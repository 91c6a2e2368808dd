"""What the watch wants of the proxies of services, and what it learns from them. `api.serve` has the proxies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.controller.runtime.keys import AttemptKey
from perdure.recovery.market.services.scale import Traffic


@dataclass(frozen=True)
class ProxyTarget:
    """A replica. `in_rotation`: it gets new requests; otherwise those under way are carried on."""

    number: int
    attempt: AttemptKey
    port: int
    in_rotation: bool
    weight: int = 100  # 1 to 256: its share of the requests, where replicas differ


@dataclass(frozen=True)
class ProxySettings:
    """What needs a new configuration of the proxy. `max_targets`: replicas that it knows at the same time."""

    service_id: int
    name: str
    port: int
    token: str = field(default="", repr=False)
    tls_key: str = field(default="", repr=False)
    tls_cert: str = field(default="", repr=False)
    round_robin: bool = False
    stream_timeout_s: float = 120.0
    max_targets: int = 16


@dataclass(frozen=True)
class ProxyState:
    """A proxy as it shall be. `refusal`: why requests are answered with 503 now, instead of held; "" to hold them."""

    settings: ProxySettings
    targets: Sequence[ProxyTarget] = ()
    refusal: str = ""


@dataclass(frozen=True)
class RequestTimes:
    """How long a request took, in seconds, and until its answer began; None if there was no answer of a replica."""

    total_s: float
    first_byte_s: float | None


@dataclass(frozen=True)
class ProxyReport:
    """What a proxy reports. `problem`: why it does not run; "" if it does. `in_flight`: requests by replica.

    `queued`: requests that wait for a replica; `held_since`: when the oldest that is held because none is ready came,
    None if there is none. `answers`: since the last report, by the first digit of the status.
    `times`: of requests that have ended since then, perhaps not of all.
    """

    traffic: Traffic = field(default_factory=Traffic)
    in_flight: Mapping[int, int] = field(default_factory=dict)
    problem: str = ""
    queued: int = 0
    held_since: float | None = None
    answers: Mapping[str, int] = field(default_factory=dict)
    times: Sequence[RequestTimes] = ()


class Proxies(Protocol):
    """The proxies of all services of a daemon. From the thread of the watch."""

    def apply(self, states: Sequence[ProxyState]) -> None:
        """Have exactly these proxies, in these states. Repeating it changes nothing. Raises nothing."""

    def report(self, service_id: int, now: float) -> ProxyReport:
        """What the proxy of a service reports now."""

    def problem(self, service_id: int) -> str:
        """Why the proxy of a service does not run now; "" if it does. From any thread."""

    def start(self) -> None:
        """Remove what an earlier daemon has left running. Raises OSError; may be repeated until it succeeds."""

    def stop(self) -> None:
        """End all proxies."""
