"""Random spot markets of several kinds, to check that a policy holds where nothing was recorded.

None is fitted to a recording. Each kind has one property that the recorded markets lack or have little of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from random import Random

from perdure.recovery.simulate.traces import BadTrace, ZoneTrace

PREFIX = "synthetic:"

_GAP_S = 300
_HOUR_S = 3600.0
_ON_DEMAND = 3.0
_MACHINES = 16  # that a zone has when it has any, so that gangs fit


@dataclass(frozen=True)
class Kind:
    """The law of a market. Times are in hours."""

    what: str
    up_h: tuple[float, float] = (8.0, 8.0)  # mean stretch with capacity: in a calm and in a volatile regime
    down_h: tuple[float, float] = (2.0, 2.0)
    regime_h: float = 72.0  # mean length of a regime
    regions: int = 3
    outage_every_h: float = 0.0  # of a whole region; 0: never
    outage_h: float = 4.0
    price_factor: float = 1.0  # the dearest zone's price over the cheapest one's
    price_sigma: float = 0.0  # of a price's logarithm, per day
    dear_is_stable: bool = False
    shrinks: bool = False  # capacity ends one machine after the other


KINDS: dict[str, Kind] = {
    "steady": Kind("zones alike, independent of each other"),
    "regimes": Kind("days of calm alternate with days in which zones flap", up_h=(30.0, 1.0), down_h=(1.0, 1.5)),
    "correlated": Kind("whole regions lose their capacity together", up_h=(20.0, 20.0), outage_every_h=24.0),
    "prices": Kind(
        "prices differ by a factor of seven and move; dear zones are stable",
        price_factor=7.0, price_sigma=0.15, dear_is_stable=True,
    ),
    "scarce": Kind("capacity is rare and short", up_h=(3.0, 1.0), down_h=(5.0, 5.0)),
    "gangs": Kind("a zone loses its machines one after the other", up_h=(10.0, 4.0), down_h=(3.0, 3.0), shrinks=True),
}  # fmt: skip


def generate(text: str) -> tuple[ZoneTrace, ...]:
    """The market that `text` names: `synthetic:KIND`, with `,zones=N`, `,days=N` and `,seed=N`. Raises `BadTrace`."""
    match = re.fullmatch(rf"{PREFIX}(\w+)((?:,\w+=\d+)*)", text)
    if match is None or match[1] not in KINDS:
        raise BadTrace(f"{text!r} is no market: write {PREFIX}KIND[,zones=N][,days=N][,seed=N], KIND {_kinds()}")
    numbers = {"zones": 6, "days": 45, "seed": 0}
    for name, value in re.findall(r"(\w+)=(\d+)", match[2]):
        if name not in numbers:
            raise BadTrace(f"{text!r}: {name} is no number of a market: use zones, days or seed")
        numbers[name] = int(value)
    if not 1 <= numbers["zones"] <= 26 or not 1 <= numbers["days"] <= 1000:
        raise BadTrace(f"{text!r}: a market has 1 to 26 zones and 1 to 1000 days")
    return market(match[1], **numbers)


def market(kind: str, *, zones: int = 6, days: int = 45, seed: int = 0) -> tuple[ZoneTrace, ...]:
    """`zones` zones of the kind, in its regions by turns. The same arguments give the same market."""
    law, random = KINDS[kind], Random(f"{kind} {seed}")  # noqa: S311 - a simulation, nothing secret
    ticks = days * 24 * 3600 // _GAP_S
    outages = [_outages(law, ticks, random) for _ in range(law.regions)]
    result = []
    for i in range(zones):
        share = i / (zones - 1) if zones > 1 else 0.0
        scale = 0.4 + 2.6 * share if law.dear_is_stable else 1.0
        counts = _counts(law, ticks, scale, random)
        counts = [0 if out else count for count, out in zip(counts, outages[i % law.regions], strict=True)]
        first = _ON_DEMAND / 3 if law.price_factor == 1 else 0.35 * law.price_factor**share
        region = f"syn-{i % law.regions + 1}"
        zone = f"{region}{chr(97 + i // law.regions)}"
        prices = _prices(law, first, ticks, random)
        # On-demand prices differ as little as those of clouds do.
        result.append(ZoneTrace(zone, region, "synthetic", 0.0, _GAP_S, tuple(counts), prices, _ON_DEMAND))
    return tuple(result)


def resampled(zones: Sequence[ZoneTrace], *, seed: int = 0, piece_h: float = 48.0) -> tuple[ZoneTrace, ...]:
    """As many zones, each put together from pieces of `zones` in random order: their law, but another history."""
    random = Random(seed)  # noqa: S311 - a simulation, nothing secret
    size = round(piece_h * _HOUR_S / zones[0].gap_s)
    length = min(len(zone.counts) for zone in zones)
    result = []
    for zone in zones:
        counts: list[int] = []
        prices: list[float] = []
        while len(counts) < length:
            source, first = random.choice(zones), random.randrange(max(1, length - size))
            counts += source.counts[first : first + size]
            # Prices keep their zone's level.
            level = zone.prices[0] / source.prices[first]
            prices += [price * level for price in source.prices[first : first + size]]
        result.append(replace(zone, counts=tuple(counts[:length]), prices=tuple(prices[:length]), start_at=0.0))
    return tuple(result)


def _kinds() -> str:
    return "one of " + ", ".join(KINDS)


def _counts(law: Kind, ticks: int, scale: float, random: Random) -> list[int]:
    """By tick: how many machines there are. `scale`: how much longer than usual they last."""
    counts: list[int] = []
    is_up = random.random() < 0.7
    regime, regime_ends = 0, 0.0
    while len(counts) < ticks:
        if len(counts) >= regime_ends:
            regime = random.randrange(2)
            regime_ends = len(counts) + random.expovariate(1.0) * law.regime_h * _HOUR_S / _GAP_S
        mean_h = law.up_h[regime] * scale if is_up else law.down_h[regime]
        # A heavy tail, with that mean: the longer it has lasted, the longer it will.
        hours = mean_h * exp(random.gauss(0.0, 1.0) - 0.5)
        length = max(1, round(hours * _HOUR_S / _GAP_S))
        counts += _shrinking(length, random) if is_up and law.shrinks else [_MACHINES * is_up] * length
        is_up = not is_up
    return counts[:ticks]


def _shrinking(length: int, random: Random) -> list[int]:
    """A stretch at whose end machines are taken one after the other."""
    tail = min(length - 1, random.randrange(1, 13))
    return [_MACHINES] * (length - tail) + [max(0, _MACHINES - 1 - i * _MACHINES // 12) for i in range(tail)]


def _outages(law: Kind, ticks: int, random: Random) -> list[bool]:
    out = [False] * ticks
    at = 0.0
    while law.outage_every_h:
        at += random.expovariate(1.0) * law.outage_every_h * _HOUR_S / _GAP_S
        if at >= ticks:
            break
        length = round(random.expovariate(1.0) * law.outage_h * _HOUR_S / _GAP_S)
        for tick in range(int(at), min(ticks, int(at) + length)):
            out[tick] = True
        at += length
    return out


def _prices(law: Kind, first: float, ticks: int, random: Random) -> tuple[float, ...]:
    """Changes twice a day, around the zone's own level; never below a tenth or above on-demand."""
    prices: list[float] = []
    drift = 0.0
    while len(prices) < ticks:
        price = min(_ON_DEMAND, max(0.1, first * exp(drift)))
        prices += [round(price, 4)] * (12 * 3600 // _GAP_S)
        drift = 0.8 * drift + random.gauss(0.0, law.price_sigma)
    return tuple(prices[:ticks])
