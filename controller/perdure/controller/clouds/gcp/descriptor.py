"""The descriptor of Google Cloud. It imports neither the implementation nor the SDK."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.clouds.base.descriptor import BuildContext, CloudDescriptor, HostingSupport, NoticeSource
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.runtime.config.config_key import ConfigKey


def _build(context: BuildContext) -> Cloud:
    from perdure.controller.clouds.gcp.cloud import GcpCloud
    from perdure.controller.clouds.gcp.settings import GcpSettings

    return GcpCloud(context.cache, GcpSettings.from_mapping(context.section), context.clock)


def _config_keys() -> Sequence[ConfigKey]:
    from perdure.controller.clouds.gcp.settings import CONFIG_KEYS

    return CONFIG_KEYS


DESCRIPTOR = CloudDescriptor(
    name="gcp",
    build=_build,
    config_keys=_config_keys,
    is_remote=True,
    # Google holds each call until something changes, so the polls can follow each other closely.
    notice_source=NoticeSource("gce-metadata", "http://metadata.google.internal", poll_s=0.1),
    extra="gcp",
    hosting=HostingSupport(default_store="gcs", permissions_file="deploy/iam/gcp-up.yaml"),
)
