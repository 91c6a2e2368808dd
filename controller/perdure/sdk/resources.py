"""What a task may run on: one `Resources`, or `Alternatives` of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perdure.sdk import infra
from perdure.sdk.accelerators import Accelerators
from perdure.sdk.problems import Problem, TaskError, shown
from perdure.sdk.report import Report
from perdure.sdk.resource_rules import settled
from perdure.sdk.schema import ONE_RESOURCES

_PLACE = ("infra", "cloud", "region", "zone")


@dataclass(frozen=True)
class Resources:
    """One alternative. Takes every form that the YAML takes, and holds one: `cpus="4+"`, `accelerators={"A100": 8}`.

    `cpus` counts vCPUs; `memory` and `disk_size` are in GiB; `max_hourly_cost` is in USD, for one machine. None means:
    any. `infra`, and `cloud`, `region`, `zone`, say the same thing; give one or the others. Raises `TaskError`.
    """

    cloud: str | None = field(default=None, repr=False)
    instance_type: str | None = None
    cpus: int | float | str | None = None
    memory: int | float | str | None = None
    accelerators: str | Accelerators | None = None
    accelerator_args: dict[str, Any] | None = None
    infra: str | None = None
    use_spot: bool = False
    job_recovery: str | dict[str, Any] | None = None
    region: str | None = field(default=None, repr=False)
    zone: str | None = field(default=None, repr=False)
    image_id: str | dict[str, str] | None = None
    disk_size: int | str | None = None
    disk_tier: str | None = None
    network_tier: str | None = None
    local_disk: str | None = None
    max_hourly_cost: float | None = None
    ports: int | str | list[str] | None = None
    labels: dict[str, str] | None = None
    autostop: bool | int | str | dict[str, Any] | None = None
    hooks: list[dict[str, Any]] | None = None
    priority: int | None = None
    priority_class: str | None = None
    volumes: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        report = Report()
        config = settled(ONE_RESOURCES.read(given, ("resources",), report))
        report.finish()
        config |= zip(("cloud", "region", "zone"), infra.parts(config.get("infra")), strict=True)
        for f in fields(self):
            object.__setattr__(self, f.name, config.get(f.name, f.default))

    def __hash__(self) -> int:
        return hash((self.infra, self.instance_type, self.cpus, self.memory, self.use_spot))

    @classmethod
    def from_yaml_config(cls, config: dict[str, Any] | None) -> Resources:
        """One alternative from its mapping; see `Alternatives.from_yaml_config` for `any_of` and `ordered`."""
        report = Report()
        canonical = ONE_RESOURCES.read(config or {}, ("resources",), report)
        report.finish()
        return cls(**canonical)

    def to_yaml_config(self) -> dict[str, Any]:
        """The shortest mapping that says the same."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("cloud", "region", "zone")}
        return {name: value for name, value in named.items() if value is not None and value is not False}

    def copy(self, **changes: Any) -> Resources:
        """The same but for `changes`. A new place (`infra`, or any of `cloud`, `region`, `zone`) replaces the old."""
        if any(name in changes for name in _PLACE):
            changes = dict.fromkeys(_PLACE) | changes
        else:
            changes |= dict.fromkeys(("cloud", "region", "zone"))
        return replace(self, **changes)


@dataclass(frozen=True)
class Alternatives:
    """What a task may run on. `ordered`: earlier ones are tried first; otherwise the cheapest offer of all wins."""

    options: tuple[Resources, ...] = (Resources(),)
    ordered: bool = False

    def __iter__(self) -> Iterator[Resources]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    @classmethod
    def of(cls, given: Resources | Iterable[Resources] | None) -> Alternatives:
        """Of one, of a set (any of them) or of a list (in order), as SkyPilot's `Task` takes them."""
        match given:
            case None:
                return cls()
            case Alternatives():
                return given
            case Resources():
                return cls((given,))
        options = tuple(given)
        if not options or not all(isinstance(option, Resources) for option in options):
            fix = "give a Resources, a list of them (in order), or a set of them (any)"
            raise TaskError([Problem("resources", f"found {shown(given)}", fix)])
        if isinstance(given, set | frozenset):
            options = tuple(sorted(options, key=repr))
            return cls(options)
        return cls(options, ordered=len(options) > 1)

    @classmethod
    def from_canonical(cls, config: dict[str, Any] | None) -> Alternatives:
        """From `resources` as the schema leaves it."""
        config = config or {}
        options = config.get("any_of") or config.get("ordered") or [config]
        return cls(tuple(Resources(**option) for option in options), ordered="ordered" in config)

    def to_yaml_config(self) -> dict[str, Any]:
        configs = [option.to_yaml_config() for option in self.options]
        if len(configs) == 1:
            return configs[0]
        return {"ordered" if self.ordered else "any_of": configs}
