"""The descriptor of AWS. It imports neither the implementation nor boto3."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.clouds.base.descriptor import BuildContext, CloudDescriptor, HostingSupport, NoticeSource
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.runtime.config.config_key import ConfigKey


def _build(context: BuildContext) -> Cloud:
    from perdure.controller.clouds.aws.cloud import AwsCloud
    from perdure.controller.clouds.aws.settings import AwsSettings

    return AwsCloud(context.cache, AwsSettings.from_mapping(context.section), context.clock)


def _config_keys() -> Sequence[ConfigKey]:
    from perdure.controller.clouds.aws.settings import CONFIG_KEYS

    return CONFIG_KEYS


DESCRIPTOR = CloudDescriptor(
    name="aws",
    build=_build,
    config_keys=_config_keys,
    is_remote=True,
    notice_source=NoticeSource("imds-v2", "http://169.254.169.254", poll_s=1.0),
    extra="aws",
    hosting=HostingSupport(default_store="s3", permissions_file="deploy/iam/aws-up.json"),
)
