"""The `local:` section of `config.yaml`: the zones, what they sell, their capacity and the errors that they simulate.

    local:
      zones:
        local-east-a: {region: local-east, price_factor: 1.0, capacity: 4}
        local-west-a: {region: local-west, launch_error: {code: InsufficientInstanceCapacity, market: spot}}
      instance_types:
        local-2: {vcpus: 2, memory_gib: 8, price_per_hour: 0.096}
      accelerators: {V100: 8, L4: 4}
      default_notice_s: 10
      isolation: auto
      capacity_trace: {…}         # instead of zones and instance_types: see `capacity`
      directory: /srv/perdure    # the machines' folder, if several controllers share it; default PERDURE_HOME

Sizes are labels: a machine's vCPUs and memory are not limited, and the machines may exceed this computer's resources.
Accelerators are simulated. Prices are invented, close to those of a large cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perdure.controller.clouds.base.config_section import Section as Section
from perdure.controller.clouds.base.config_section import SectionError as SectionError
from perdure.controller.clouds.local.capacity import TRACE_KEYS, CapacityTrace, read_trace
from perdure.controller.clouds.local.launch_errors import CODES
from perdure.controller.clouds.local.machine import process_tree
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.limits import CLOUD_LIMITS
from perdure.recovery.market.view import Market

PRICE_PER_VCPU_HOUR = 0.048
SPOT_SHARE = 0.3
VCPUS = (1, 2, 4, 8, 16, 32, 64, 96)
GIB_PER_VCPU = 4.0
VCPUS_PER_GPU = 8
GIB_PER_GPU = 64.0
PRICE_PER_GPU_HOUR = {"T4": 0.35, "L4": 0.6, "A10G": 0.8, "V100": 2.5, "A100": 3.4, "A100-80GB": 4.2, "H100": 6.5}
OTHER_GPU_PER_HOUR = 1.0
ISOLATIONS = ("auto", process_tree.OVERLAY, process_tree.BIND, process_tree.PROCESSES)

CONFIG_KEYS = (
    ConfigKey("local", "mapping, or false", "{}", "The simulated cloud on this computer; false turns it off."),
    ConfigKey(
        "local.zones.<name>.region",
        "text",
        "required",
        "The zone's region; naming any zone replaces the default zones.",
    ),
    ConfigKey("local.zones.<name>.price_factor", "number", "1", "Multiplies all prices in the zone."),
    ConfigKey(
        "local.zones.<name>.capacity",
        "whole number",
        "null (no limit)",
        "How many machines may exist at once.",
        "machines",
    ),
    ConfigKey(
        "local.zones.<name>.launch_error.code",
        f"one of {', '.join(CODES)}",
        "required",
        "The error with which launches fail.",
    ),
    ConfigKey("local.zones.<name>.launch_error.message", "text", "that of the code", "The text of the error."),
    ConfigKey(
        "local.zones.<name>.launch_error.market",
        f"one of {', '.join(Market)}",
        "both",
        "The market whose launches fail.",
    ),
    ConfigKey(
        "local.instance_types.<name>.vcpus", "number", "required", "The vCPUs that the type has in offers.", "vCPUs"
    ),
    ConfigKey("local.instance_types.<name>.memory_gib", "number", f"{GIB_PER_VCPU:g} per vCPU", "Its memory.", "GiB"),
    ConfigKey(
        "local.instance_types.<name>.price_per_hour",
        "number",
        f"{PRICE_PER_VCPU_HOUR:g} per vCPU",
        "Its on-demand price before the zone's factor.",
        "USD/h",
    ),
    ConfigKey(
        "local.accelerators.<name>", "whole number", "none", "How many simulated accelerators a machine may have."
    ),
    ConfigKey(
        "local.default_notice_s",
        "number",
        "10",
        "The notice of a simulated interruption that does not specify one.",
        "s",
    ),
    ConfigKey(
        "local.isolation",
        f"one of {', '.join(ISOLATIONS)}",
        "auto",
        "How machines are isolated; auto chooses the best available.",
    ),
    ConfigKey("local.directory", "path", "PERDURE_HOME", "The machines' folder, which several controllers must share."),
    *TRACE_KEYS,
)


@dataclass(frozen=True)
class LaunchError:
    """The error of every launch in a zone, or of every launch of one market."""

    code: str
    message: str = ""
    market: Market | None = None  # None: both


@dataclass(frozen=True)
class Zone:
    """A zone of the local cloud."""

    name: str
    region: str
    price_factor: float = 1.0
    capacity: int | None = None  # how many instances of all types may exist at once; None: no limit
    launch_error: LaunchError | None = None

    def with_overrides(self, mapping: object, where: str) -> Zone:
        """This zone, with the mapping's fields instead of its own. Raises SettingsError."""
        section = Section(mapping, where, known=child_names(CONFIG_KEYS, "local.zones.<name>"))
        changed = replace(
            self,
            region=section.text("region", self.region),
            price_factor=section.number("price_factor", self.price_factor, above=0),
        )
        if "capacity" in section.values:
            changed = replace(changed, capacity=section.count_or_none("capacity"))
        if "launch_error" in section.values:
            error = _launch_error(section.values["launch_error"], f"{where}.launch_error")
            changed = replace(changed, launch_error=error)
        return changed


@dataclass(frozen=True)
class LocalInstanceType:
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
DEFAULT_TYPES = tuple(LocalInstanceType(f"local-{n}", n, n * GIB_PER_VCPU, n * PRICE_PER_VCPU_HOUR) for n in VCPUS)


@dataclass(frozen=True)
class LocalSettings:
    """The settings of the local cloud."""

    zones: tuple[Zone, ...] = DEFAULT_ZONES
    #: Includes the types with accelerators.
    instance_types: tuple[LocalInstanceType, ...] = DEFAULT_TYPES
    #: The notice of a simulated interruption that does not specify one.
    default_notice_s: float = 10.0
    #: "auto", or a kind of isolation to insist on.
    isolation: str = "auto"
    #: Name → the largest count per machine.
    accelerators: dict[str, int] = field(default_factory=dict)
    #: Determines spot capacity, spot prices and the zones.
    capacity_trace: CapacityTrace | None = None

    @classmethod
    def from_mapping(cls, mapping: object) -> LocalSettings:
        """From the section of config.yaml; None: all defaults. Raises SettingsError, which names the field."""
        section = Section(
            {} if mapping is None else mapping,
            "local",
            known=(*child_names(CONFIG_KEYS, "local"), *CLOUD_LIMITS),
        )
        accelerators = {
            name: counts.count(name, at_least=1)
            for counts in (section.subsection("accelerators"),)
            for name in counts.values
        }
        types = section.subsection("instance_types")
        if "directory" in section.values:
            section.text("directory", "")  # the daemon's settings use it: more than this cloud is stored there
        isolation = section.text("isolation", "auto")
        if isolation not in ISOLATIONS:
            raise SectionError(
                f"{isolation!r} is unknown", where="local.isolation", fix=f"use one of {', '.join(ISOLATIONS)}"
            )
        settings = cls(
            zones=_zones(section.subsection("zones")),
            instance_types=(
                *(tuple(_instance_type(types, name) for name in types.values) or DEFAULT_TYPES),
                *(one for name, max_count in accelerators.items() for one in _accelerated(name, max_count)),
            ),
            default_notice_s=section.number("default_notice_s", 10.0, above=0),
            isolation=isolation,
            accelerators=accelerators,
        )
        return _with_trace(settings, section) if "capacity_trace" in section.values else settings


def _with_trace(settings: LocalSettings, section: Section) -> LocalSettings:
    """`settings` with the zones, the instance types and the prices of the trace. Raises SettingsError."""
    for name in ("zones", "instance_types", "accelerators"):
        if name in section.values:
            where = f"{section.where}.{name}"
            raise SectionError("the capacity trace defines its own", where=where, fix="remove it, or the trace")
    trace = read_trace(section)
    prices = {z.instance_type: z.on_demand_price for z in trace.zones}
    return replace(
        settings,
        zones=tuple(Zone(z.zone, z.region, z.on_demand_price / prices[z.instance_type]) for z in trace.zones),
        instance_types=tuple(
            LocalInstanceType(name, VCPUS_PER_GPU, GIB_PER_GPU, price) for name, price in prices.items()
        ),
        capacity_trace=trace,
    )


def _zones(section: Section) -> tuple[Zone, ...]:
    zones = []
    for name, values in section.values.items():
        where = f"{section.where}.{name}"
        if not isinstance(values, Mapping) or "region" not in values:
            raise SectionError("the region is missing", where=where, fix=f"write `{name}: {{region: …}}`")
        zones.append(Zone(name, "").with_overrides(values, where))
    return tuple(zones) or DEFAULT_ZONES


def _launch_error(value: object, where: str) -> LaunchError | None:
    if value is None:
        return None
    section = Section(value, where, known=child_names(CONFIG_KEYS, "local.zones.<name>.launch_error"))
    code, market = section.text("code", ""), section.values.get("market")
    if code not in CODES:
        raise SectionError(f"{code!r} is unknown", where=f"{where}.code", fix=f"use one of {', '.join(CODES)}")
    if market not in (None, *Market):
        raise SectionError(f"{market!r} is not a market", where=f"{where}.market", fix=f"use {' or '.join(Market)}")
    message = section.text("message", CODES[code].text)
    return LaunchError(code, message, Market(market) if market else None)


def _instance_type(types: Section, name: str) -> LocalInstanceType:
    section = Section(
        types.values[name], f"{types.where}.{name}", known=child_names(CONFIG_KEYS, "local.instance_types.<name>")
    )
    vcpus = section.number("vcpus", above=0)
    memory_gib = section.number("memory_gib", vcpus * GIB_PER_VCPU, above=0)
    return LocalInstanceType(
        name, vcpus, memory_gib, section.number("price_per_hour", vcpus * PRICE_PER_VCPU_HOUR, above=0)
    )


def _accelerated(name: str, max_count: int) -> list[LocalInstanceType]:
    """Types with 1, 2, 4 … and `max_count` of an accelerator."""
    counts = sorted({1 << power for power in range(max_count.bit_length())} | {max_count})
    slug = "".join(char if char.isalnum() else "-" for char in name.lower())
    each = PRICE_PER_GPU_HOUR.get(name, OTHER_GPU_PER_HOUR) + VCPUS_PER_GPU * PRICE_PER_VCPU_HOUR
    return [
        LocalInstanceType(f"local-{slug}x{n}", n * VCPUS_PER_GPU, n * GIB_PER_GPU, n * each, (name, float(n)))
        for n in counts
    ]
