"""The permissions of deploy/iam/gcp-controller.yaml that the controller uses, and their purposes."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.controller.clouds.base.account_checks import Permission
from perdure.controller.clouds.gcp.settings import GcpSettings

_DESCRIBE = (
    ("compute.instances.list", "it lists machines"),
    ("compute.zones.list", "it lists zones"),
    ("compute.machineTypes.list", "it lists the machine types of each zone"),
    ("compute.acceleratorTypes.list", "it lists the GPUs of each zone"),
    ("compute.zoneOperations.get", "it reports when a launch is done"),
    ("compute.zoneOperations.list", "it reports preemptions"),
)
_LAUNCH = (
    ("compute.instances.create", "it launches machines"),
    ("compute.disks.create", "it creates the disks of machines"),
    ("compute.disks.setLabels", "it labels disks"),
    ("compute.images.useReadOnly", "machines boot from images with it"),
    ("compute.instances.setLabels", "it marks machines as Perdure's"),
    ("compute.instances.setMetadata", "it sets the start-up script of machines"),
    ("compute.networks.use", "it connects machines to their network"),
    ("compute.subnetworks.use", "it connects machines to their subnet"),
)
_TERMINATE = (
    ("compute.instances.delete", "it terminates machines"),
    ("compute.disks.delete", "it deletes the disks of machines"),
)
_PORTS = (
    *(f"compute.firewalls.{verb}" for verb in ("create", "delete", "get", "update")),
    "compute.globalOperations.get",
    "compute.instances.setTags",
    "compute.networks.updatePolicy",
)
_ADDRESS = ("compute.networks.useExternalIp", "compute.subnetworks.useExternalIp")


def required_permissions(settings: GcpSettings) -> Iterator[Permission]:
    """The permissions that the controller uses with these settings."""
    for name, purpose in (*_LAUNCH, *_TERMINATE, *_DESCRIBE):
        yield Permission(name, purpose)
    purpose = "the log of a job shows the console of a machine that never called"
    yield Permission("compute.instances.getSerialPortOutput", purpose, is_required=False)
    for name in ("compute.instances.stop", "compute.instances.start"):
        yield Permission(name, "it keeps the disks of clusters that are stopped", is_required=False)
    for name in _PORTS:
        yield Permission(name, "`resources.ports` of a cluster needs it", is_required=False)
    if settings.external_ip:
        for name in _ADDRESS:
            yield Permission(name, "it assigns public addresses, which gcp.external_ip: false turns off")
    if settings.service_account is not None:
        yield Permission("compute.instances.setServiceAccount", "gcp.service_account needs it")
    if settings.interruption_queues:
        yield Permission("pubsub.subscriptions.consume", "it reads gcp.interruption_queues", is_required=False)
    purpose = "`perdure jobs preempt` needs it"
    yield Permission("compute.instances.simulateMaintenanceEvent", purpose, is_required=False)
    yield Permission("compute.regions.list", "`perdure check` reads quotas with it", is_required=False)
