"""The GPU networks of Google's machines: TCPX (A3 High), TCPXO (A3 Mega), and RoCE (A3 Ultra, A4).

The pod gets an interface in each network of its node, and the node's own build of NCCL's plugin. TCPX and TCPXO need a
daemon beside the workload; that of TCPX is privileged. They need all GPUs of a node.
Sources: cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx, and
cloud.google.com/ai-hypercomputer/docs/create/gke-ai-hypercompute-custom.
"""

from __future__ import annotations

import json
import re
from typing import Any

from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView
from perdure.controller.clouds.kubernetes.pods.fabric import NO_FABRIC, PodFabric

INTERFACES = "networking.gke.io/interfaces"
DEFAULT_INTERFACE = "networking.gke.io/default-interface"
TCPXO_DEVICES = "devices.gke.io/container.tcpxo-daemon"
# A node's resource for each of its networks: `networking.gke.io.networks/vpc1.IP`.
_NETWORK = re.compile(r"networking\.gke\.io\.networks/(?P<name>[a-z0-9-]+?)(?:\.IP)?")
_TCPX_IMAGE = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.11"
_TCPXO_IMAGE = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.17"
_LIBRARIES = "/home/kubernetes/bin/nvidia"
_LIBRARY_PATH = "/usr/local/nvidia/lib64"
_LD = {"LD_LIBRARY_PATH": _LIBRARY_PATH}
_GPU_DEVICES = [f"/dev/nvidia{number}" for number in range(8)]
_DAEMON_DEVICES = [*_GPU_DEVICES, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dmabuf_import_helper"]
_FAST_4 = ",".join(f"eth{number}" for number in range(1, 5))
_FAST_8 = ",".join(f"eth{number}" for number in range(1, 9))
_TCPX_ENV = {
    **_LD,
    "NCCL_NET": "GPUDirectTCPX_v7",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": _FAST_4,
    "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
    "NCCL_GPUDIRECTTCPX_FORCE_ACK": "0",
    "NCCL_CROSS_NIC": "0",
    "NCCL_P2P_PXN_LEVEL": "0",
}
_TCPXO_ENV = {
    **_LD,
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_FASTRAK_CTRL_DEV": "eth0",
    "NCCL_FASTRAK_IFNAME": _FAST_8,
    "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
}


def fabric_of_node(node: NodeView) -> PodFabric:
    """The fabric of a Google node, for a pod with all of its GPUs; NO_FABRIC for other machines."""
    networks = networks_of(node)
    if node.instance_type.startswith("a3-highgpu-8g") and len(networks) >= 4:
        return _tcpx(networks[:4])
    if node.instance_type.startswith("a3-megagpu-8g") and len(networks) >= 8:
        return _tcpxo(networks[:8])
    if node.instance_type.startswith(("a3-ultragpu-8g", "a4-highgpu-8g")):
        return _roce(networks)
    return NO_FABRIC


def networks_of(node: NodeView) -> list[str]:
    """The node's networks beside the default one, in the order of their numbers."""
    matches = (_NETWORK.fullmatch(resource) for resource in node.allocatable)
    names = {match["name"] for match in matches if match is not None} - {"default"}
    return sorted(names, key=lambda name: (re.sub(r"\d+", "", name), [int(one) for one in re.findall(r"\d+", name)]))


def _interfaces(networks: list[str]) -> dict[str, str]:
    listed = [{"interfaceName": f"eth{number}", "network": name} for number, name in enumerate(["default", *networks])]
    return {DEFAULT_INTERFACE: "eth0", INTERFACES: json.dumps(listed)}


def _tcpx(networks: list[str]) -> PodFabric:
    script = (
        "/tcpgpudmarxd/build/app/tcpgpudmarxd --gpu_nic_preset a3vm --gpu_shmem_type fd --uds_path /run/tcpx "
        '--setup_param "--verbose 128 2 0"'
    )
    mounts = {"nvidia-libraries": "/usr/local/nvidia", "tcpx-socket": "/run/tcpx"}
    return PodFabric(
        "GPUDirect-TCPX of 4 networks",
        env=_TCPX_ENV,
        annotations=_interfaces(networks),
        volumes={
            "nvidia-libraries": (_LIBRARIES, "/usr/local/nvidia"),
            "tcpx-socket": ("", "/run/tcpx"),
        },
        sidecars=(_daemon("tcpx-daemon", _TCPX_IMAGE, script, {"privileged": True}, mounts),),
        is_privileged=True,
    )


def _tcpxo(networks: list[str]) -> PodFabric:
    script = (
        "set -ex; chmod 755 /fts/entrypoint_rxdm_container.sh; "
        "exec /fts/entrypoint_rxdm_container.sh --num_hops=2 --num_nics=8 --uid= --alsologtostderr"
    )
    mounts = {"nvidia-libraries": "/usr/local/nvidia", "sys": "/hostsysfs", "proc-sys": "/hostprocsysfs"}
    context = {"capabilities": {"add": ["NET_ADMIN", "NET_BIND_SERVICE"]}}
    devices = "".join(f"- path: {path}\n" for path in _DAEMON_DEVICES)
    return PodFabric(
        "GPUDirect-TCPXO of 8 networks",
        env=_TCPXO_ENV,
        annotations={**_interfaces(networks), TCPXO_DEVICES: devices},
        volumes={
            "nvidia-libraries": (_LIBRARIES, "/usr/local/nvidia"),
            "aperture-devices": ("/dev/aperture_devices", "/dev/aperture_devices"),
        },
        sidecars=(_daemon("tcpxo-daemon", _TCPXO_IMAGE, script, context, mounts),),
        sidecar_volumes={"sys": "/sys", "proc-sys": "/proc/sys"},
    )


def _roce(networks: list[str]) -> PodFabric:
    """By DRANET or multi-networking: without networks of the node, only its libraries are attached."""
    if not any(name.startswith("rdma") for name in networks):
        return NO_FABRIC
    return PodFabric(
        "RoCE by NCCL's plugin gIB",
        env={**_LD, "NCCL_NET": "gIB"},
        capabilities=("IPC_LOCK",),
        annotations=_interfaces(networks),
        volumes={
            "nvidia-libraries": (_LIBRARIES, "/usr/local/nvidia"),
            "gib": ("/home/kubernetes/bin/gib", "/usr/local/gib"),
        },
    )


def _daemon(name: str, image: str, script: str, context: dict[str, Any], mounts: dict[str, str]) -> dict[str, Any]:
    """A container that starts before the workload and ends after it."""
    return {
        "name": name,
        "image": image,
        "restartPolicy": "Always",
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": key, "value": value} for key, value in _LD.items()],
        "securityContext": context,
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    }
