"""The installed clouds: their descriptors, found through entry points, and the clouds that config.yaml enables.

A cloud's implementation and its SDK are imported only if the cloud is configured. A cloud whose package or SDK is
broken is unavailable, with the reason; it does not affect the other clouds. Calls for its machines fail and are retried
until it is repaired.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NoReturn

import structlog

from perdure.controller.clouds.base.config_section import locate_errors
from perdure.controller.clouds.base.descriptor import (
    DEFAULT_POWER_OFF_AFTER_S,
    BuildContext,
    CloudDescriptor,
    HostingSupport,
    NoticeSource,
)
from perdure.controller.clouds.base.protocol import Cloud, Fault, HasLocalBuckets, Instance, OpensPorts, Stoppable
from perdure.controller.clouds.pricing.cache import InMemoryOfferCache, OfferCache
from perdure.controller.runtime.clock import REAL_TIME, Clock, TimeScale
from perdure.controller.runtime.config.config_file import ErrorCollector, SettingsError
from perdure.controller.runtime.config.limits import CLOUD_LIMITS, DEFAULT_CONCURRENT_CALLS
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason
from perdure.sdk.connection.installation import cloud_entry_points

log = structlog.get_logger(__name__)

_NOT_CONFIGURED = "it is not configured: add a section `{}:` to {} (see docs/guides/clouds)"
_TURNED_OFF = "`{}: false` in config.yaml turns it off: jobs do not run on the controller's own computer"
_NOT_SHARED = (
    "several controllers share one address and may run on several computers: use another cloud or, if all run on one "
    "computer, set {}.directory to a folder that they share"
)
_BROKEN_PACKAGE = "{} provides the cloud {} but cannot be loaded ({}): upgrade or uninstall that package"
_NOT_INSTALLED = "no installed package provides the cloud {}: install the package again"
_BROKEN_CLOUD = "it failed to start ({}): correct its section of config.yaml, or upgrade the package that provides it"


def descriptors() -> Mapping[str, CloudDescriptor]:
    """The descriptors of all installed clouds, by name, without those of broken packages: default clouds first."""
    return _load()[0]


def broken_packages() -> Mapping[str, str]:
    """Cloud → why the package that provides it cannot be loaded, and what to do."""
    return _load()[1]


def default_concurrent_calls(cloud: str) -> int:
    """How many calls to a cloud may run at a time, unless config.yaml sets it."""
    descriptor = descriptors().get(cloud)
    return descriptor.max_concurrent_calls if descriptor else DEFAULT_CONCURRENT_CALLS


def power_off_stops(cloud: str) -> bool:
    """Whether a machine that powers itself off is as one that was stopped: only its disk is billed."""
    descriptor = descriptors().get(cloud)
    return descriptor is None or descriptor.power_off_stops


def default_power_off_after_s(cloud: str) -> float:
    """How long a cloud's idle machines wait for a controller, unless config.yaml sets it."""
    descriptor = descriptors().get(cloud)
    return descriptor.power_off_after_s if descriptor else DEFAULT_POWER_OFF_AFTER_S


def notice_source(cloud: str) -> NoticeSource | None:
    """Where the agents of a cloud's machines read preemption notices."""
    descriptor = descriptors().get(cloud)
    return descriptor.notice_source if descriptor else None


def is_remote(cloud: str) -> bool:
    """Whether a cloud's machines run elsewhere, with user data that others may read."""
    descriptor = descriptors().get(cloud)
    return descriptor is not None and descriptor.is_remote


def runs_containers(cloud: str) -> bool:
    """Whether a cloud's machines are containers, so that it runs the image of a task itself."""
    descriptor = descriptors().get(cloud)
    return descriptor is not None and descriptor.runs_containers


def hosting_support(cloud: str) -> HostingSupport | None:
    """How a cloud hosts controllers; None if it does not."""
    descriptor = descriptors().get(cloud)
    return descriptor.hosting if descriptor else None


def time_speed(sections: Mapping[str, object], home: Path) -> float | None:
    """How fast a simulating cloud makes the controller's clock run; None: real time. Raises SettingsError."""
    with locate_errors(home):
        for name, descriptor in descriptors().items():
            if descriptor.time_speed is not None and _is_enabled(descriptor, sections):
                speed = descriptor.time_speed(sections.get(name))
                if speed is not None:
                    return speed
    return None


def real_time_clouds() -> tuple[str, ...]:
    """The clouds that always run in real time."""
    return tuple(d.name for d in descriptors().values() if d.time_speed is None)


def build_clouds(
    sections: Mapping[str, object],
    home: Path,
    clock: Clock,
    *,
    local_home: Path | None = None,
    has_local: bool = True,
    time_scale: TimeScale = REAL_TIME,
    cache: OfferCache | None = None,
) -> dict[str, Cloud]:
    """Every cloud by name. `unusable` of an unavailable one returns the reason.

    `sections`: config.yaml as a mapping. `home`: PERDURE_HOME. `local_home`: the folder for machines on this computer
    (default: `home`). `has_local`: whether clouds whose machines run on the controller's computer are available.
    `time_scale`: of `clock`. `cache`: stores offers (default: in memory). Raises SettingsError, which names the field,
    for an invalid section: one line for each section that is invalid.
    """
    clouds: dict[str, Cloud] = {name: BrokenCloud(name, reason) for name, reason in broken_packages().items()}
    cache, errors = cache or InMemoryOfferCache(clock), ErrorCollector()
    for name, descriptor in descriptors().items():
        if not _is_enabled(descriptor, sections):
            reason = _TURNED_OFF if descriptor.is_default else _NOT_CONFIGURED
            clouds[name] = UnavailableCloud(name, reason.format(name, home / "config.yaml"))
            continue
        context = BuildContext(_own_keys(sections.get(name)), clock, cache, local_home or home, time_scale)
        fallback: Cloud = UnavailableCloud(name, _NOT_CONFIGURED)
        cloud = errors.attempt(partial(_build_located, descriptor, context, home), fallback)
        is_unshared = descriptor.runs_on_controller and not has_local
        clouds[name] = UnavailableCloud(name, _NOT_SHARED.format(name)) if is_unshared else cloud
    errors.raise_if_any()
    return clouds


def find_cloud(clouds: Mapping[str, Cloud], name: str) -> Cloud:
    """The cloud `name`. One whose package was uninstalled is a broken cloud: its machines may still run."""
    return clouds[name] if name in clouds else BrokenCloud(name, _NOT_INSTALLED.format(name))


def stoppable(clouds: Mapping[str, Cloud]) -> frozenset[str]:
    """The clouds that stop machines and start them again."""
    return frozenset(name for name, cloud in clouds.items() if isinstance(cloud, Stoppable))


def opens_ports(clouds: Mapping[str, Cloud]) -> frozenset[str]:
    """The clouds that open ports of machines to the internet."""
    return frozenset(name for name, cloud in clouds.items() if isinstance(cloud, OpensPorts))


def buckets_on_node(clouds: Iterable[Cloud]) -> str | None:
    """Where machines find this computer's buckets; None if no cloud has machines on this computer."""
    return next((cloud.buckets_on_node() for cloud in clouds if isinstance(cloud, HasLocalBuckets)), None)


class UnavailableCloud:
    """A cloud that cannot be used: it has no offers and no machines, and `unusable` returns why."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def unusable(self) -> str | None:
        return self._reason

    def notes(self) -> Sequence[str]:
        return ()

    def offers(self) -> Sequence[Offer]:
        return ()

    def list_owned(self, controller: str) -> Sequence[Instance]:  # noqa: ARG002
        return ()

    def _raise(self, *_args: Any, **_named: Any) -> NoReturn:
        raise NotImplementedError(self._reason)

    launch = describe = terminate = _raise

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.AVOID_CLOUD, Reason.BAD_REQUEST, "Unavailable", str(error), whole_cloud=True)


class BrokenCloud(UnavailableCloud):
    """A cloud that cannot be loaded. It has no offers, but its machines may still run.

    The result of every call is AMBIGUOUS: intents stay open and are retried until the cloud is repaired.
    """

    def list_owned(self, controller: str) -> NoReturn:
        self._raise(controller)

    def classify(self, error: Exception) -> Fault:
        return replace(super().classify(error), kind=FaultKind.AMBIGUOUS)


def _is_enabled(descriptor: CloudDescriptor, sections: Mapping[str, object]) -> bool:
    if descriptor.is_default:
        return sections.get(descriptor.name) is not False
    return descriptor.name in sections


def _own_keys(section: object) -> object:
    """The section without the keys that Perdure itself reads in the sections of all clouds."""
    if not isinstance(section, Mapping):
        return section
    return {name: value for name, value in section.items() if name not in CLOUD_LIMITS}


def _build_located(descriptor: CloudDescriptor, context: BuildContext, home: Path) -> Cloud:
    with locate_errors(home):
        return _build(descriptor, context)


def _build(descriptor: CloudDescriptor, context: BuildContext) -> Cloud:
    try:
        return descriptor.build(context)
    except SettingsError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken cloud must not stop the others
        log.error("cloud.build_failed", cloud=descriptor.name, traceback=traceback.format_exc())
        return BrokenCloud(descriptor.name, _BROKEN_CLOUD.format(_summary(error)))


def _load() -> tuple[Mapping[str, CloudDescriptor], Mapping[str, str]]:
    return _load_descriptors(tuple(sys.path))


@cache
def _load_descriptors(
    _search_path: tuple[str, ...],
) -> tuple[Mapping[str, CloudDescriptor], Mapping[str, str]]:
    entry_points = cloud_entry_points()
    loaded: list[CloudDescriptor] = []
    broken: dict[str, str] = {}
    for name in dict.fromkeys(entry_point.name for entry_point in entry_points):
        providers = [entry_point for entry_point in entry_points if entry_point.name == name]
        try:
            if len(providers) > 1:
                raise ValueError(f"{' and '.join(map(_package, providers))} both provide it")
            loaded.append(_load_descriptor(providers[0]))
        except Exception as error:  # noqa: BLE001 - a broken package must not stop the other clouds
            broken[name] = _BROKEN_PACKAGE.format(_package(providers[-1]), name, _summary(error))
            log.error("cloud.package_broken", cloud=name, error=broken[name])
    loaded.sort(key=lambda descriptor: (not descriptor.is_default, descriptor.name))
    return {descriptor.name: descriptor for descriptor in loaded}, broken


def _package(entry_point: EntryPoint) -> str:
    return f"the package {entry_point.dist.name}" if entry_point.dist else entry_point.value


def _load_descriptor(entry_point: EntryPoint) -> CloudDescriptor:
    descriptor = entry_point.load()
    if not isinstance(descriptor, CloudDescriptor):
        raise TypeError(f"{entry_point.value} is not a CloudDescriptor")
    if descriptor.name != entry_point.name:
        raise ValueError(f"{entry_point.value} has the name {descriptor.name!r}")
    return descriptor


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
