"""What is used of deploy/iam/gcp-controller.yaml, and for what."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.controller.clouds.checks import Permission
from perdure.controller.clouds.gcp.settings import GcpSettings

_LOOK = (
    ("compute.instances.list", "machines are watched with it"),
    ("compute.zones.list", "it tells the zones"),
    ("compute.machineTypes.list", "it tells what zones sell"),
    ("compute.acceleratorTypes.list", "it tells what GPUs zones sell"),
    ("compute.zoneOperations.get", "it tells when a launch is done"),
    ("compute.zoneOperations.list", "it tells of preemptions"),
)
_BUY = (
    ("compute.instances.create", "machines are bought with it"),
    ("compute.disks.create", "machines get their disk with it"),
    ("compute.disks.setLabels", "disks are marked with it"),
    ("compute.images.useReadOnly", "machines boot with it"),
    ("compute.instances.setLabels", "machines are marked with it as Perdure's"),
    ("compute.instances.setMetadata", "machines get their start-up script with it"),
    ("compute.networks.use", "machines get their network with it"),
    ("compute.subnetworks.use", "machines get their network with it"),
)
_END = (
    ("compute.instances.delete", "machines are ended with it"),
    ("compute.disks.delete", "their disks go with it"),
)
_ADDRESS = ("compute.networks.useExternalIp", "compute.subnetworks.useExternalIp")


def wanted(settings: GcpSettings) -> Iterator[Permission]:
    """With these settings."""
    for name, lets in (*_BUY, *_END, *_LOOK):
        yield Permission(name, lets)
    if settings.external_ip:
        for name in _ADDRESS:
            yield Permission(name, "machines get a public address with it, unless gcp.external_ip is false")
    if settings.service_account is not None:
        yield Permission("compute.instances.setServiceAccount", "gcp.service_account wants it")
    if settings.notice_queues:
        yield Permission("pubsub.subscriptions.consume", "gcp.notice_queues are read with it", is_needed=False)
    rehearse = "without it `perdure jobs preempt` can not be rehearsed there"
    yield Permission("compute.instances.simulateMaintenanceEvent", rehearse, is_needed=False)
    yield Permission("compute.regions.list", "it tells quotas to `perdure check`", is_needed=False)
