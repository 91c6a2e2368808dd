"""Which clouds this controller has, by name. A cloud's module, and its SDK, is loaded only when it is enabled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from perdure.controller.clock import REAL_TIME, Clock, Pace
from perdure.controller.clouds.base import Cloud, Fault, Instance
from perdure.controller.clouds.offercache import InMemory, OfferCache
from perdure.controller.clouds.section import placed
from perdure.recovery.market import FaultKind, Offer
from perdure.recovery.reasons import Reason

NOT_BUILT = ("kubernetes",)


def enabled_clouds(
    settings: Mapping[str, object],
    home: Path,
    clock: Clock,
    *,
    local_home: Path | None = None,
    has_local: bool = True,
    pace: Pace = REAL_TIME,
    cache: OfferCache | None = None,
) -> dict[str, Cloud]:
    """Every cloud by name, those too that can not be used: `unusable` says why.

    `settings` is `config.yaml` as a mapping, `home` is PERDURE_HOME, `local_home` where the local cloud keeps its
    machines (default: `home`). `pace`: of `clock` beside the world. `cache`: where what they sell is kept (default: in
    this process). Raises the `SettingsError` (a ValueError) of the
    cloud whose section can not be used; it names the field.
    """
    clouds: dict[str, Cloud] = {name: Absent(name, _NOT_BUILT.format(name)) for name in NOT_BUILT}
    cache = cache or InMemory(clock)
    clouds |= {name: _bought(name, settings, home, clock, cache) for name in BOUGHT}
    if settings.get("local") is False:
        clouds["local"] = Absent("local", _TURNED_OFF)
    else:
        local = _local(settings, home, local_home or home, clock, pace)
        clouds["local"] = local if has_local else Absent("local", _NOT_SHARED)
    return clouds


_NOT_BUILT = "this version of Perdure can not use {} yet: choose another cloud"
_NOT_SET_UP = "it is not set up: add a section `{}:` to config.yaml (see the README)"
_TURNED_OFF = "`local: false` in config.yaml turns it off: jobs are not to run on the controller's own computer"
_NOT_SHARED = (
    "several controllers are behind one address, and may be on several computers: use another cloud, or, where all run "
    "on one computer, set local.directory to a folder that they share"
)


class Absent:
    """A cloud that can not be used here: it sells nothing, owns nothing, and does nothing but say `why`."""

    ignores: frozenset[str] = frozenset()

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    def unusable(self) -> str | None:
        return self._why

    def notes(self) -> Sequence[str]:
        return ()

    def offers(self) -> Sequence[Offer]:
        return ()

    def list_owned(self, controller: str) -> Sequence[Instance]:  # noqa: ARG002
        return ()

    def _refuse(self, *_args: Any, **_named: Any) -> NoReturn:
        raise NotImplementedError(self._why)

    launch = describe = terminate = _refuse

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.AVOID_CLOUD, Reason.BAD_REQUEST, "NotBuilt", str(error), whole_cloud=True)


def _bought(name: str, settings: Mapping[str, object], home: Path, clock: Clock, cache: OfferCache) -> Cloud:
    """Only where it is asked for: nobody is to be billed because of credentials that happen to lie around."""
    if name not in settings:
        return Absent(name, _NOT_SET_UP.format(name))
    with placed(home):
        return BOUGHT[name](cache, settings[name], clock)


def _aws(cache: OfferCache, section: object, clock: Clock) -> Cloud:
    from perdure.controller.clouds.aws.cloud import AwsCloud
    from perdure.controller.clouds.aws.settings import AwsSettings

    return AwsCloud(cache, AwsSettings.from_mapping(section), clock)


def _gcp(cache: OfferCache, section: object, clock: Clock) -> Cloud:
    from perdure.controller.clouds.gcp.cloud import GcpCloud
    from perdure.controller.clouds.gcp.settings import GcpSettings

    return GcpCloud(cache, GcpSettings.from_mapping(section), clock)


def _azure(cache: OfferCache, section: object, clock: Clock) -> Cloud:
    from perdure.controller.clouds.azure.cloud import AzureCloud
    from perdure.controller.clouds.azure.settings import AzureSettings

    return AzureCloud(cache, AzureSettings.from_mapping(section), clock)


# Clouds whose machines are bought: (where what they sell is kept, their section of config.yaml, the clock) → the cloud.
# Each loads its own module; what it is called here is the section's name.
BOUGHT: dict[str, Callable[[OfferCache, object, Clock], Cloud]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _local(settings: Mapping[str, object], home: Path, local_home: Path, clock: Clock, pace: Pace) -> Cloud:
    from perdure.controller.clouds.local.cloud import LocalCloud
    from perdure.controller.clouds.local.settings import LocalSettings

    with placed(home):
        return LocalCloud(local_home, LocalSettings.from_mapping(settings.get("local")), clock, pace=pace)


def time_speed(settings: Mapping[str, object], home: Path) -> float | None:
    """How fast a capacity trace of the local cloud has the controller's time run; None where there is no trace.

    Raises the `SettingsError` of its section.
    """
    from perdure.controller.clouds.local.capacity import read_speed

    if settings.get("local") is False:
        return None
    with placed(home):
        return read_speed(settings.get("local"))


def buckets_on_node(cloud: Cloud) -> str | None:
    """Where machines of the local cloud find this computer's buckets; None if that cloud is off."""
    from perdure.controller.clouds.local.cloud import LocalCloud

    return cloud.buckets_on_node() if isinstance(cloud, LocalCloud) else None
