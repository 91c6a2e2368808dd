"""Stops machines, and starts them again as those of another attempt: with another owner and another start-up script.

cloud.google.com/compute/docs/instances/stop-start-instance
"""

from __future__ import annotations

from typing import Any

from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.gcp.machines import launch_request
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections


def stop(connections: GcpConnections, id: str) -> Any:
    """Begin to stop a machine. Returns the operation. A machine with local SSDs is only stopped if they are discarded.

    cloud.google.com/compute/docs/disks/local-ssd#stop_instance
    """
    call = {**_target(connections, id), "discard_local_ssd": True}
    return connections.instances.stop_unary(request=call, **connections.once)


def start(connections: GcpConnections, id: str) -> Any:
    """Begin to start a machine. Returns the operation."""
    return connections.instances.start_unary(request=_target(connections, id), **connections.once)


def set_metadata(connections: GcpConnections, request: LaunchRequest, zone: str, resource: Any) -> Any:
    """Begin to replace the owner and the start-up script of a machine. Returns the operation."""
    items = {item.key: item.value for item in resource.metadata.items}
    items |= {item["key"]: item["value"] for item in launch_request.metadata_items(request)}
    metadata = {
        "fingerprint": resource.metadata.fingerprint,
        "items": [{"key": key, "value": value} for key, value in items.items()],
    }
    call = {**_place(connections, zone, resource.name), "metadata_resource": metadata}
    return connections.instances.set_metadata_unary(request=call, **connections.once)


def set_labels(connections: GcpConnections, request: LaunchRequest, zone: str, resource: Any) -> Any:
    """Begin to replace the labels of a machine. Returns the operation."""
    labels = {"labels": launch_request.labels_of(request), "label_fingerprint": resource.label_fingerprint}
    call = {**_place(connections, zone, resource.name), "instances_set_labels_request_resource": labels}
    return connections.instances.set_labels_unary(request=call, **connections.once)


def _target(connections: GcpConnections, id: str) -> dict[str, Any]:
    zone, _, name = id.partition("/")
    return _place(connections, zone, name)


def _place(connections: GcpConnections, zone: str, name: str) -> dict[str, Any]:
    return {"project": connections.project, "zone": zone, "instance": name}
