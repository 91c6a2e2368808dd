"""The descriptor of the local cloud. It does not import the implementation."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.clouds.base.descriptor import BuildContext, CloudDescriptor, HostingSupport, NoticeSource
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.runtime.config.config_key import ConfigKey
from perdure.controller.runtime.config.limits import cloud_limit_keys

_MONTH_S = 30 * 86_400.0
_MAX_CONCURRENT_CALLS = 16  # launches also wait for this computer and the database: more calls at a time are not faster


def _build(context: BuildContext) -> Cloud:
    from perdure.controller.clouds.local.cloud import LocalCloud
    from perdure.controller.clouds.local.settings import LocalSettings

    settings = LocalSettings.from_mapping(context.section)
    return LocalCloud(context.local_home, settings, context.clock, time_scale=context.time_scale)


def _config_keys() -> Sequence[ConfigKey]:
    from perdure.controller.clouds.local.settings import CONFIG_KEYS

    return (*CONFIG_KEYS, *cloud_limit_keys("local", _MAX_CONCURRENT_CALLS))


def _time_speed(section: object) -> float | None:
    from perdure.controller.clouds.local.capacity import read_speed

    return read_speed(section)


DESCRIPTOR = CloudDescriptor(
    name="local",
    build=_build,
    config_keys=_config_keys,
    is_default=True,
    runs_on_controller=True,
    time_speed=_time_speed,
    max_concurrent_calls=_MAX_CONCURRENT_CALLS,
    power_off_after_s=_MONTH_S,  # local machines cost nothing
    notice_source=NoticeSource("imds-v2", None, poll_s=0.1),
    hosting=HostingSupport(shares_computer=True),
)
