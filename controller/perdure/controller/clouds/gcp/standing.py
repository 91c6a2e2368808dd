"""What a controller's own machine needs in Google Cloud beside the machine: a disk, an address, an open port.

Each goes by the bring-up's name, so that it is found again, and made but once. Calls are plain REST
(`Connections.call`); each is waited for, in one call that Google holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from perdure.controller.clouds.base import Disk, LaunchRequest, NotYet, Standing
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.gcp import faults, launching
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.hosting.cloud_config import cloud_config

URL = "https://compute.googleapis.com"
DEVICE_NAME = "perdure-state"
DEVICE = f"/dev/disk/by-id/google-{DEVICE_NAME}"
STATE_LABEL = f"{launching.LABEL}state"
DISK_KIND = "pd-balanced"
DONE = "DONE"
READY = "READY"


def state_disk(connections: Connections, name: str, region: str, zone: str, gib: int) -> Disk:
    """The disk of that name; made in `zone` if the region has none. Google encrypts them all."""
    found = _find_disk(connections, name, region)
    if found is None:
        body = {
            "name": disk_name(name),
            "sizeGb": str(gib),
            "type": f"zones/{zone}/diskTypes/{DISK_KIND}",
            "labels": {STATE_LABEL: launching.label(name)},
            "description": "The state of a Perdure controller",
        }
        try:
            _make(connections, f"zones/{zone}", "disks", body)
        except NotYet:
            return Disk(disk_name(name), zone, gib, is_ready=False)
        found = _find_disk(connections, name, region)
    if found is None:
        return Disk(disk_name(name), zone, gib, is_ready=False)
    return Disk(found["name"], _last_word(found["zone"]), int(found["sizeGb"]), found["status"] == READY)


def remove_disk(connections: Connections, name: str, region: str) -> None:
    """Raises NotYet while it goes."""
    found = _find_disk(connections, name, region)
    if found is not None:
        _remove(connections, f"zones/{_last_word(found['zone'])}", "disks", found["name"])


def require_disk(connections: Connections, disk: Disk, machine: str) -> None:
    """Raises NotYet until it can be the machine's (its name): ready, and no other's."""
    found = _get(connections, f"zones/{disk.zone}", "disks", disk.id)
    if found is None or found["status"] != READY:
        raise NotYet(f"the disk {disk.id} is not ready yet")
    if others := [user for user in map(_last_word, found.get("users", ())) if user != machine]:
        raise NotYet(f"the disk {disk.id} is that of {others[0]} still")


def open_port(connections: Connections, name: str, needs: Standing, settings: GcpSettings) -> None:
    """A rule that lets `needs.callers` reach the port of machines with the tag `tag(name)`."""
    wanted = {
        "sourceRanges": [needs.callers],
        "targetTags": [tag(name)],
        "allowed": [{"IPProtocol": "tcp", "ports": [str(needs.port)]}],
    }
    found = _get(connections, "global", "firewalls", tag(name))
    if found is None:
        more = {"name": tag(name), "network": f"global/networks/{settings.network}", "direction": "INGRESS"}
        _make(connections, "global", "firewalls", {**more, **wanted, "description": "Calls to the Perdure controller"})
    elif any(found.get(field) != value for field, value in wanted.items()):
        _do(connections, "PATCH", "global", f"firewalls/{tag(name)}", wanted)


def address(connections: Connections, name: str, region: str, settings: GcpSettings) -> str:
    """The address that is kept for machines of that name: public, unless machines are to have none that is."""
    scope = f"regions/{region}"
    found = _get(connections, scope, "addresses", tag(name))
    if found is None:
        body = {"name": tag(name), "addressType": "EXTERNAL", "description": "Of the Perdure controller"}
        if not settings.external_ip:
            subnet = settings.subnets.get(region, settings.network)  # that of a network made automatically has its name
            within = {"purpose": "GCE_ENDPOINT", "subnetwork": f"{scope}/subnetworks/{subnet}"}
            body |= {"addressType": "INTERNAL", **within}
        _make(connections, scope, "addresses", body)
        found = _get(connections, scope, "addresses", tag(name))
    if found is None or not found.get("address"):
        raise NotYet(f"the address {tag(name)} is not there yet")
    return str(found["address"])


def leave(connections: Connections, name: str, region: str) -> None:
    """Neither address nor rule is left. Raises NotYet."""
    _remove(connections, f"regions/{region}", "addresses", tag(name))
    _remove(connections, "global", "firewalls", tag(name))


def instance(
    properties: Mapping[str, Any], request: LaunchRequest, needs: Standing, *, project: str, address: str, account: str
) -> dict[str, Any]:
    """The body of instances.insert for a controller's machine, from the properties of a node's."""
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
    told = [one for one in properties["metadata"]["items"] if one["key"] != "startup-script"]
    user_data = {"key": "user-data", "value": cloud_config(needs.program, home=needs.home, device=DEVICE)}
    return {
        **properties,
        "name": launching.names(request, 0)[0],
        "machine_type": f"zones/{zone}/machineTypes/{properties['machine_type']}",
        "disks": [{**boot, "initialize_params": {**parameters, **boot_kind}}, state],
        "network_interfaces": [interface],
        "metadata": {"items": [*told, user_data]},
        "scheduling": {**properties["scheduling"], "automatic_restart": True},  # its state is on the disk
        "service_accounts": [{"email": account, "scopes": list(launching.SCOPES)}],
        "tags": {"items": [tag(request.owner.controller)]},
    }


def insert(connections: Connections, zone: str, body: Mapping[str, Any]) -> Any:
    """The operation that makes it. Its name stands for it: what is there already is not made again."""
    call = {"project": connections.project, "zone": zone, "instance_resource": body}
    return connections.instances.insert_unary(request=call, **connections.once)


def tag(name: str) -> str:
    """Of the machines, and the name of their rule and their address. Raises Refused for one that can be none."""
    if not re.fullmatch(r"[a-z0-9](-?[a-z0-9])*", name) or len(name) > 40:
        raise Refused("invalid", f"{name!r} can not be part of a name in Google Cloud")
    return f"perdure-{name}"


def disk_name(name: str) -> str:
    return f"{tag(name)}-state"


def is_unheard_of(error: Exception) -> bool:
    """Whether it is about a service account that was made a moment ago: that is told slowly."""
    return bool(re.search(r"of type 'serviceAccount' was not found|Service account \S+ does not exist", str(error)))


def _find_disk(connections: Connections, name: str, region: str) -> dict[str, Any] | None:
    for scope, told in _scopes(connections, f"aggregated/disks?filter=name+%3D+%22{disk_name(name)}%22"):
        if not scope.startswith(f"zones/{region}-"):
            continue
        if told.get("warning", {}).get("code") == "UNREACHABLE":
            raise Refused("UNREACHABLE", f"{scope} does not tell which disks are there")
        for disk in told.get("disks", ()):
            found: dict[str, Any] = disk
            return found
    return None


def _scopes(connections: Connections, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Page by page: one may be empty although another follows."""
    page, more = path, True
    while more:
        told = connections.call("GET", URL, _path(connections, page))
        yield from told.get("items", {}).items()
        more = "nextPageToken" in told
        page = f"{path}&pageToken={told.get('nextPageToken', '')}"


def _get(connections: Connections, scope: str, kind: str, name: str) -> dict[str, Any] | None:
    """None if it is not there."""
    try:
        told: dict[str, Any] = connections.call("GET", URL, _path(connections, f"{scope}/{kind}/{name}"))
    except Exception as error:
        if faults.code_of(error) not in faults.MISSING:
            raise
        return None
    return told


def _make(connections: Connections, scope: str, kind: str, body: Mapping[str, Any]) -> None:
    """Raises NotYet, and Refused. What somebody else has made meanwhile is as good."""
    try:
        _do(connections, "POST", scope, kind, body)
    except Exception as error:
        if faults.code_of(error) not in faults.EXISTS:
            raise


def _remove(connections: Connections, scope: str, kind: str, name: str) -> None:
    """Raises NotYet while it is in use still."""
    try:
        _do(connections, "DELETE", scope, f"{kind}/{name}")
    except Exception as error:
        code = faults.code_of(error)
        if code in faults.IN_USE:
            raise NotYet(str(error)) from error
        if code not in faults.MISSING:
            raise


def _do(connections: Connections, method: str, scope: str, path: str, body: object = None) -> None:
    """Have it done. Raises Refused if it failed, NotYet if it takes long."""
    told = connections.call(method, URL, _path(connections, f"{scope}/{path}"), body)
    if told["status"] != DONE:
        try:
            told = connections.call("POST", URL, _path(connections, f"{scope}/operations/{told['name']}/wait"))
        except Exception as error:
            if faults.code_of(error) not in faults.TIMED_OUT:
                raise
    if failure := faults.failure_of(told.get("error", {}).get("errors", ())):
        raise failure
    if told["status"] != DONE:
        raise NotYet(f"operation {told['name']} in {scope} is not done yet")


def _path(connections: Connections, path: str) -> str:
    return f"/compute/v1/projects/{connections.project}/{path}"


def _last_word(link: str) -> str:
    return link.rpartition("/")[2]
