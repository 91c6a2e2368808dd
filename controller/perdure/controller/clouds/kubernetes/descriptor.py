"""The descriptor of Kubernetes. It does not import the implementation."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.controller.clouds.base.descriptor import BuildContext, CloudDescriptor
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.runtime.config.config_key import ConfigKey


def _build(context: BuildContext) -> Cloud:
    from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
    from perdure.controller.clouds.kubernetes.settings import KubernetesSettings

    return KubernetesCloud(KubernetesSettings.from_mapping(context.section), context.clock)


def _config_keys() -> Sequence[ConfigKey]:
    from perdure.controller.clouds.kubernetes.config_keys import KEYS

    return KEYS


DESCRIPTOR = CloudDescriptor(
    name="kubernetes", build=_build, config_keys=_config_keys, is_remote=True, runs_containers=True
)
