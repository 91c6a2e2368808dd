"""The `local:` section of `config.yaml`: which zones there are, what they sell, how much of it, and what they refuse.

    local:
      zones:
        local-east-a: {region: local-east, price_factor: 1.0, capacity: 4}
        local-west-a: {region: local-west, refuse: {code: InsufficientInstanceCapacity, market: spot}}
      instance_types:
        local-2: {vcpus: 2, memory_gib: 8, price_per_hour: 0.096}
      accelerators: {V100: 8, L4: 4}
      default_notice_s: 10
      isolation: auto
      capacity_trace: {…}         # in place of zones and instance_types: see `capacity`
      directory: /srv/perdure    # where machines live, if several controllers share them; default PERDURE_HOME

Sizes are labels: nothing limits a machine to its vCPUs or memory, and this computer may be sold many times over.
Accelerators are pretended. Prices are invented, near those of a large cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perdure.controller.bounds import CLOUD_FIELDS
from perdure.controller.clouds.local import machine
from perdure.controller.clouds.local.capacity import CapacityTrace, read_trace
from perdure.controller.clouds.local.refusals import CODES
from perdure.controller.clouds.section import Section as Section
from perdure.controller.clouds.section import SettingsError as SettingsError
from perdure.recovery.market import Market

PRICE_PER_VCPU_HOUR = 0.048
SPOT_SHARE = 0.3
VCPUS = (1, 2, 4, 8, 16, 32, 64, 96)
GIB_PER_VCPU = 4.0
VCPUS_PER_GPU = 8
GIB_PER_GPU = 64.0
PRICE_PER_GPU_HOUR = {"T4": 0.35, "L4": 0.6, "A10G": 0.8, "V100": 2.5, "A100": 3.4, "A100-80GB": 4.2, "H100": 6.5}
OTHER_GPU_PER_HOUR = 1.0
ISOLATIONS = ("auto", machine.OVERLAY, machine.BIND, machine.PROCESSES)


@dataclass(frozen=True)
class Refuse:
    """A zone that says no to every launch, or to those of one market."""

    code: str
    message: str = ""
    market: Market | None = None


@dataclass(frozen=True)
class Zone:
    """`capacity`: how many instances may live at once, of all types; None = no limit."""

    name: str
    region: str
    price_factor: float = 1.0
    capacity: int | None = None
    refuse: Refuse | None = None

    def changed_by(self, mapping: object, where: str) -> Zone:
        """This zone with the mapping's fields in place of its own. Raises SettingsError."""
        section = Section(mapping, where, known=("region", "price_factor", "capacity", "refuse"))
        changed = replace(
            self,
            region=section.text("region", self.region),
            price_factor=section.number("price_factor", self.price_factor, above=0),
        )
        if "capacity" in section.values:
            changed = replace(changed, capacity=section.count_or_none("capacity"))
        if "refuse" in section.values:
            changed = replace(changed, refuse=_refuse(section.values["refuse"], f"{where}.refuse"))
        return changed


@dataclass(frozen=True)
class InstanceType:
    """`price_per_hour`: on demand, before the zone's factor, USD."""

    name: str
    vcpus: float
    memory_gib: float
    price_per_hour: float
    accelerators: tuple[str, float] | None = None


DEFAULT_ZONES = (
    Zone("local-east-a", "local-east", 1.0),
    Zone("local-east-b", "local-east", 1.04),
    Zone("local-west-a", "local-west", 1.1),
)
DEFAULT_TYPES = tuple(InstanceType(f"local-{n}", n, n * GIB_PER_VCPU, n * PRICE_PER_VCPU_HOUR) for n in VCPUS)


@dataclass(frozen=True)
class LocalSettings:
    """`default_notice_s`: the notice of a rehearsed interruption when nobody says how long.

    `instance_types` includes those that carry accelerators. `isolation`: "auto", or one kind and no other.
    `capacity_trace`: what spot capacity and prices follow; the zones are its own then.
    """

    zones: tuple[Zone, ...] = DEFAULT_ZONES
    instance_types: tuple[InstanceType, ...] = DEFAULT_TYPES
    default_notice_s: float = 10.0
    isolation: str = "auto"
    accelerators: dict[str, int] = field(default_factory=dict)
    capacity_trace: CapacityTrace | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> LocalSettings:
        """From the section as it was read; None = all defaults. Raises SettingsError, which names the field."""
        section = Section(
            {} if mapping is None else mapping,
            "local",
            known=(*_KNOWN, *CLOUD_FIELDS),
        )
        accelerators = {
            name: counts.count(name, at_least=1) for counts in (section.part("accelerators"),) for name in counts.values
        }
        types = section.part("instance_types")
        if "directory" in section.values:
            section.text("directory", "")  # read by the daemon's own settings: more than this cloud is kept there
        isolation = section.text("isolation", "auto")
        if isolation not in ISOLATIONS:
            raise SettingsError(
                f"{isolation!r} is unknown", where="local.isolation", fix=f"use one of {', '.join(ISOLATIONS)}"
            )
        found = cls(
            zones=_zones(section.part("zones")),
            instance_types=(
                *(tuple(_instance_type(types, name) for name in types.values) or DEFAULT_TYPES),
                *(kind for name, most in accelerators.items() for kind in _accelerated(name, most)),
            ),
            default_notice_s=section.number("default_notice_s", 10.0, above=0),
            isolation=isolation,
            accelerators=accelerators,
        )
        return _traced(found, section) if "capacity_trace" in section.values else found


_KNOWN = (
    *("zones", "instance_types", "accelerators", "default_notice_s", "isolation", "directory"),
    "capacity_trace",
)


def _traced(settings: LocalSettings, section: Section) -> LocalSettings:
    """`settings` with the zones, the machine and the prices that were recorded. Raises SettingsError."""
    for name in ("zones", "instance_types", "accelerators"):
        if name in section.values:
            where = f"{section.where}.{name}"
            raise SettingsError("a capacity trace brings its own", where=where, fix="take it out, or the trace")
    trace = read_trace(section)
    kinds = {z.instance_type: z.on_demand_price for z in trace.zones}
    return replace(
        settings,
        zones=tuple(Zone(z.zone, z.region, z.on_demand_price / kinds[z.instance_type]) for z in trace.zones),
        instance_types=tuple(InstanceType(name, VCPUS_PER_GPU, GIB_PER_GPU, price) for name, price in kinds.items()),
        capacity_trace=trace,
    )


def _zones(section: Section) -> tuple[Zone, ...]:
    zones = []
    for name, values in section.values.items():
        where = f"{section.where}.{name}"
        if not isinstance(values, Mapping) or "region" not in values:
            raise SettingsError("the region is missing", where=where, fix=f"write `{name}: {{region: …}}`")
        zones.append(Zone(name, "").changed_by(values, where))
    return tuple(zones) or DEFAULT_ZONES


def _refuse(value: object, where: str) -> Refuse | None:
    if value is None:
        return None
    section = Section(value, where, known=("code", "message", "market"))
    code, market = section.text("code", ""), section.values.get("market")
    if code not in CODES:
        raise SettingsError(f"{code!r} is unknown", where=f"{where}.code", fix=f"use one of {', '.join(CODES)}")
    if market not in (None, *Market):
        raise SettingsError(f"{market!r} is no market", where=f"{where}.market", fix=f"use {' or '.join(Market)}")
    message = section.text("message", CODES[code].text)
    return Refuse(code, message, Market(market) if market else None)


def _instance_type(types: Section, name: str) -> InstanceType:
    section = Section(types.values[name], f"{types.where}.{name}", known=("vcpus", "memory_gib", "price_per_hour"))
    vcpus = section.number("vcpus", above=0)
    memory_gib = section.number("memory_gib", vcpus * GIB_PER_VCPU, above=0)
    return InstanceType(name, vcpus, memory_gib, section.number("price_per_hour", vcpus * PRICE_PER_VCPU_HOUR, above=0))


def _accelerated(name: str, most: int) -> list[InstanceType]:
    """Types with 1, 2, 4 … and `most` of an accelerator."""
    counts = sorted({1 << power for power in range(most.bit_length())} | {most})
    slug = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    each = PRICE_PER_GPU_HOUR.get(name, OTHER_GPU_PER_HOUR) + VCPUS_PER_GPU * PRICE_PER_VCPU_HOUR
    return [
        InstanceType(f"local-{slug}x{n}", n * VCPUS_PER_GPU, n * GIB_PER_GPU, n * each, (name, float(n)))
        for n in counts
    ]
