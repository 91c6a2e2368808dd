"""The descriptor of Azure. It imports neither the implementation nor the SDK."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.clouds.base.descriptor import BuildContext, CloudDescriptor, HostingSupport, NoticeSource
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.runtime.config.config_key import ConfigKey


def _build(context: BuildContext) -> Cloud:
    from perdure.controller.clouds.azure.cloud import AzureCloud
    from perdure.controller.clouds.azure.settings import AzureSettings

    return AzureCloud(context.cache, AzureSettings.from_mapping(context.section), context.clock)


def _config_keys() -> Sequence[ConfigKey]:
    from perdure.controller.clouds.azure.settings import CONFIG_KEYS

    return CONFIG_KEYS


DESCRIPTOR = CloudDescriptor(
    name="azure",
    build=_build,
    config_keys=_config_keys,
    is_remote=True,
    power_off_stops=False,  # it is billed until it is deallocated
    notice_source=NoticeSource("azure-scheduled-events", "http://169.254.169.254", poll_s=1.0),
    extra="azure",
    hosting=HostingSupport(default_store="azure", permissions_file="deploy/iam/azure-up.json"),
)
