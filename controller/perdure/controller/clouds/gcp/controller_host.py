"""The Google Cloud resources of a controller's own machine: a disk, an address and an open port.

Each is named after the hosted controller, so that every step is idempotent. Calls are plain REST
(`GcpConnections.call`). Each operation is awaited in one call, which Google holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import Disk, EventuallyConsistent, HostRequirements, LaunchRequest
from perdure.controller.clouds.bootstrap.cloud_config import render_cloud_config
from perdure.controller.clouds.gcp import faults
from perdure.controller.clouds.gcp.machines import launch_request
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.gcp.settings import GcpSettings

URL = "https://compute.googleapis.com"
DEVICE_NAME = "perdure-state"
DEVICE = f"/dev/disk/by-id/google-{DEVICE_NAME}"
STATE_LABEL = f"{launch_request.LABEL}state"
DISK_KIND = "pd-balanced"
DONE = "DONE"
READY = "READY"


def state_disk(connections: GcpConnections, name: str, region: str, zone: str, gib: int) -> Disk:
    """The disk of that name; created in `zone` if the region has none. Google encrypts all disks."""
    disk = _find_disk(connections, name, region)
    if disk is None:
        body = {
            "name": disk_name(name),
            "sizeGb": str(gib),
            "type": f"zones/{zone}/diskTypes/{DISK_KIND}",
            "labels": {STATE_LABEL: launch_request.label(name)},
            "description": "The state of a Perdure controller",
        }
        try:
            _create(connections, f"zones/{zone}", "disks", body)
        except EventuallyConsistent:
            return Disk(disk_name(name), zone, gib, is_ready=False)
        disk = _find_disk(connections, name, region)
    if disk is None:
        return Disk(disk_name(name), zone, gib, is_ready=False)
    return Disk(disk["name"], _last_segment(disk["zone"]), int(disk["sizeGb"]), disk["status"] == READY)


def remove_disk(connections: GcpConnections, name: str, region: str) -> None:
    """Raises EventuallyConsistent until the disk is gone."""
    disk = _find_disk(connections, name, region)
    if disk is not None:
        _remove(connections, f"zones/{_last_segment(disk['zone'])}", "disks", disk["name"])


def require_disk(connections: GcpConnections, disk: Disk, machine: str) -> None:
    """Raises EventuallyConsistent until the disk is ready and not attached to another machine than `machine`."""
    resource = _get(connections, f"zones/{disk.zone}", "disks", disk.id)
    if resource is None or resource["status"] != READY:
        raise EventuallyConsistent(f"the disk {disk.id} is not ready yet")
    if others := [user for user in map(_last_segment, resource.get("users", ())) if user != machine]:
        raise EventuallyConsistent(f"the disk {disk.id} is still attached to {others[0]}")


def open_port(connections: GcpConnections, name: str, needs: HostRequirements, settings: GcpSettings) -> None:
    """Create or correct the rule that admits `needs.allowed_cidr` to the port of machines with the tag `tag(name)`."""
    ports, source = [str(needs.port)], needs.allowed_cidr
    admit(connections, tag(name), ports, source, settings, description="Calls to the Perdure controller")


def admit(
    connections: GcpConnections, tag: str, ports: Sequence[str], source: str, settings: GcpSettings, *, description: str
) -> None:
    """Create or correct the rule `tag`, which admits `source` to these ports alone of machines with that tag."""
    fields = {
        "sourceRanges": [source],
        "targetTags": [tag],
        "allowed": [{"IPProtocol": "tcp", "ports": list(ports)}],
    }
    rule = _get(connections, "global", "firewalls", tag)
    if rule is None:
        more = {"name": tag, "network": f"global/networks/{settings.network}", "direction": "INGRESS"}
        _create(connections, "global", "firewalls", {**more, **fields, "description": description})
    elif any(rule.get(field) != value for field, value in fields.items()):
        _run_operation(connections, "PATCH", "global", f"firewalls/{tag}", fields)


def remove_rule(connections: GcpConnections, tag: str) -> None:
    """Delete the rule `tag`, if there is one. Raises EventuallyConsistent until it is gone."""
    _remove(connections, "global", "firewalls", tag)


def address(connections: GcpConnections, name: str, region: str, settings: GcpSettings) -> str:
    """The address reserved for machines of that name: public, unless `gcp.external_ip` is false."""
    scope = f"regions/{region}"
    resource = _get(connections, scope, "addresses", tag(name))
    if resource is None:
        body = {"name": tag(name), "addressType": "EXTERNAL", "description": "Of the Perdure controller"}
        if not settings.external_ip:
            subnet = settings.subnets.get(region, settings.network)  # an automatic network's subnet has its name
            within = {"purpose": "GCE_ENDPOINT", "subnetwork": f"{scope}/subnetworks/{subnet}"}
            body |= {"addressType": "INTERNAL", **within}
        _create(connections, scope, "addresses", body)
        resource = _get(connections, scope, "addresses", tag(name))
    if resource is None or not resource.get("address"):
        raise EventuallyConsistent(f"the address {tag(name)} is not ready yet")
    return str(resource["address"])


def release(connections: GcpConnections, name: str, region: str) -> None:
    """Delete the address and the rule. Raises EventuallyConsistent."""
    _remove(connections, f"regions/{region}", "addresses", tag(name))
    remove_rule(connections, tag(name))


def instance(
    properties: Mapping[str, Any],
    request: LaunchRequest,
    needs: HostRequirements,
    *,
    project: str,
    address: str,
    account: str,
) -> dict[str, Any]:
    """The body of instances.insert for a controller's machine, based on the properties of a node's."""
    zone, (boot,) = request.offer.zone, properties["disks"]
    parameters = boot["initialize_params"]
    boot_kind = {"disk_type": f"zones/{zone}/diskTypes/{parameters['disk_type']}"}
    state = {
        "source": f"projects/{project}/zones/{zone}/disks/{needs.disk.id}",
        "device_name": DEVICE_NAME,
        "auto_delete": False,
    }
    (interface,) = properties["network_interfaces"]
    if "access_configs" in interface:
        (access,) = interface["access_configs"]
        interface = {**interface, "access_configs": [{**access, "nat_i_p": address}]}
    else:
        interface = {**interface, "network_i_p": address}
    items = [one for one in properties["metadata"]["items"] if one["key"] != "startup-script"]
    user_data = {"key": "user-data", "value": render_cloud_config(needs.program, home=needs.home, device=DEVICE)}
    return {
        **properties,
        "name": launch_request.names(request, 0)[0],
        "machine_type": f"zones/{zone}/machineTypes/{properties['machine_type']}",
        "disks": [{**boot, "initialize_params": {**parameters, **boot_kind}}, state],
        "network_interfaces": [interface],
        "metadata": {"items": [*items, user_data]},
        "scheduling": {**properties["scheduling"], "automatic_restart": True},  # a restart loses nothing
        "service_accounts": [{"email": account, "scopes": list(launch_request.SCOPES)}],
        "tags": {"items": [tag(request.owner.controller)]},
    }


def insert(connections: GcpConnections, zone: str, body: Mapping[str, Any]) -> Any:
    """The operation that creates the machine. Idempotent by its name."""
    call = {"project": connections.project, "zone": zone, "instance_resource": body}
    return connections.instances.insert_unary(request=call, **connections.once)


def tag(name: str) -> str:
    """The tag of the machines, which also names their rule and their address. Raises CloudRejected if it is invalid."""
    if not re.fullmatch(r"[a-z0-9](-?[a-z0-9])*", name) or len(name) > 40:
        raise CloudRejected("invalid", f"{name!r} cannot be part of a name in Google Cloud")
    return f"perdure-{name}"


def disk_name(name: str) -> str:
    return f"{tag(name)}-state"


def is_new_account_unknown(error: Exception) -> bool:
    """Whether the call failed because a new service account is not known everywhere yet."""
    return bool(re.search(r"of type 'serviceAccount' was not found|Service account \S+ does not exist", str(error)))


def _find_disk(connections: GcpConnections, name: str, region: str) -> dict[str, Any] | None:
    for scope, part in _scopes(connections, f"aggregated/disks?filter=name+%3D+%22{disk_name(name)}%22"):
        if not scope.startswith(f"zones/{region}-"):
            continue
        if part.get("warning", {}).get("code") == "UNREACHABLE":
            raise CloudRejected("UNREACHABLE", f"the disks of {scope} are temporarily unknown")
        for resource in part.get("disks", ()):
            disk: dict[str, Any] = resource
            return disk
    return None


def _scopes(connections: GcpConnections, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All pages; an empty one may have a next page."""
    page, more = path, True
    while more:
        response = connections.call("GET", URL, _path(connections, page))
        yield from response.get("items", {}).items()
        more = "nextPageToken" in response
        page = f"{path}&pageToken={response.get('nextPageToken', '')}"


def _get(connections: GcpConnections, scope: str, kind: str, name: str) -> dict[str, Any] | None:
    """None if it does not exist."""
    try:
        resource: dict[str, Any] = connections.call("GET", URL, _path(connections, f"{scope}/{kind}/{name}"))
    except Exception as error:
        if faults.code_of(error) not in faults.MISSING:
            raise
        return None
    return resource


def _create(connections: GcpConnections, scope: str, kind: str, body: Mapping[str, Any]) -> None:
    """Raises EventuallyConsistent and CloudRejected. A resource that already exists is a success."""
    try:
        _run_operation(connections, "POST", scope, kind, body)
    except Exception as error:
        if faults.code_of(error) not in faults.EXISTS:
            raise


def _remove(connections: GcpConnections, scope: str, kind: str, name: str) -> None:
    """Raises EventuallyConsistent while it is still in use."""
    try:
        _run_operation(connections, "DELETE", scope, f"{kind}/{name}")
    except Exception as error:
        code = faults.code_of(error)
        if code in faults.IN_USE:
            raise EventuallyConsistent(str(error)) from error
        if code not in faults.MISSING:
            raise


def _run_operation(connections: GcpConnections, method: str, scope: str, path: str, body: object = None) -> None:
    """Make the call and wait for its operation.

    Raises CloudRejected if it fails, and EventuallyConsistent if it takes long.
    """
    operation = connections.call(method, URL, _path(connections, f"{scope}/{path}"), body)
    if operation["status"] != DONE:
        try:
            operation = connections.call(
                "POST", URL, _path(connections, f"{scope}/operations/{operation['name']}/wait")
            )
        except Exception as error:
            if faults.code_of(error) not in faults.TIMED_OUT:
                raise
    if failure := faults.failure_of(operation.get("error", {}).get("errors", ())):
        raise failure
    if operation["status"] != DONE:
        raise EventuallyConsistent(f"operation {operation['name']} in {scope} is not done yet")


def _path(connections: GcpConnections, path: str) -> str:
    return f"/compute/v1/projects/{connections.project}/{path}"


def _last_segment(link: str) -> str:
    return link.rpartition("/")[2]
