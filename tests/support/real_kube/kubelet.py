"""This computer as a node of a real cluster: its kubelet, with containerd, runc and a bridge for its pods."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO

import yaml

from perdure.controller.clouds.kubernetes.api.errors import ApiError
from support.helpers.ports import unused_port
from support.helpers.timing import scaled, wait_until
from support.real_kube.hollow_nodes import NODES
from support.real_kube.images import PAUSE, write_images
from support.real_kube.servers import KUBELET, PROGRAMS, Servers

NAME, ZONE = "real-node", "zone-real"
_BRIDGE, _ADDRESS, _NETWORK = "perdure-kube0", "198.18.1.1", "198.18.1.0/24"  # of the range for tests of networks


def missing() -> str | None:
    """What this machine lacks to run a kubelet; None if nothing."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if not (PROGRAMS / "kubelet").exists() or not Path("/usr/lib/cni/bridge").exists():
        return "the kubelet is not built: run scripts/ensure-kubernetes.sh"
    wanted = ("containerd", "runc", "ctr", "busybox", "ip", "iptables", "mount")
    absent = [program for program in wanted if shutil.which(program) is None]
    return f"{', '.join(absent)} missing: run scripts/ensure-kubernetes.sh" if absent else None


class RealNode:
    """Started once; `address` is where its pods reach this computer."""

    address = _ADDRESS

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._client = servers.client()
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-node-"))
        self._socket = self.folder / "containerd.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def start(self) -> None:
        try:
            self._make_bridge()
            self._start_containerd()
            for archive in write_images(self.folder):
                self._ctr("images", "import", str(archive))
                archive.unlink()
            self._start_kubelet()
            wait_until(self._is_ready, lambda: f"the kubelet: {self.log('kubelet')[-2000:]}", 60)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Nothing of it is left: no container, mount, bridge or file."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._kill_containers()
        for log in self._logs:
            log.close()
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for path in sorted((one for one in mounts if one.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in Path("/var/log/pods").glob("test-*_pd-*"):
            shutil.rmtree(folder, ignore_errors=True)
        for link in Path("/var/log/containers").glob("pd-*_test-*.log"):
            link.unlink()
        with contextlib.suppress(ApiError, ConnectionError):
            self._client.delete(f"{NODES}/{NAME}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # ---- private ----

    def _make_bridge(self) -> None:
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)
        for words in (
            ["link", "add", _BRIDGE, "type", "bridge"],
            ["address", "add", f"{_ADDRESS}/24", "dev", _BRIDGE],
            ["link", "set", _BRIDGE, "up"],
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True)

    def _start_containerd(self) -> None:
        networks = self.folder / "net.d"
        networks.mkdir()
        ranges = [[{"subnet": _NETWORK, "rangeStart": "198.18.1.10", "gateway": _ADDRESS}]]
        ipam = {"type": "host-local", "ranges": ranges, "dataDir": str(self.folder / "addresses")}
        bridge = {"type": "bridge", "bridge": _BRIDGE, "ipam": ipam | {"routes": [{"dst": "0.0.0.0/0"}]}}
        plugins = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (networks / "10-pods.conflist").write_text(json.dumps(plugins))
        config = f"""
version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/state"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
"""
        (self.folder / "containerd.toml").write_text(config)
        self._run("containerd", ["containerd", "--config", str(self.folder / "containerd.toml")])
        wait_until(lambda: self._ctr("version", check=False) == 0, lambda: self.log("containerd")[-2000:], 30)

    def _start_kubelet(self) -> None:
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(self._servers.kubeconfig(KUBELET)))
        config = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "address": "127.0.0.1",
            "port": unused_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": "2s",
            "resolvConf": "",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(config))
        self._run(
            "kubelet",
            [
                str(PROGRAMS / "kubelet"),
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--kubeconfig={path}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'certificates'}",
                "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{self._socket}",
                f"--hostname-override={NAME}",
                f"--node-ip={_ADDRESS}",
                f"--node-labels=topology.kubernetes.io/zone={ZONE}",
            ],
        )

    def _is_ready(self) -> bool:
        assert self._processes[-1].poll() is None, self.log("kubelet")[-3000:]
        try:
            node = self._client.get(f"{NODES}/{NAME}")
        except ApiError:
            return False
        is_tainted = any(one["effect"] == "NoSchedule" for one in node["spec"].get("taints") or ())
        conditions = {one["type"]: one["status"] for one in node["status"].get("conditions") or ()}
        return conditions.get("Ready") == "True" and not is_tainted

    def _kill_containers(self) -> None:
        """Containers outlive their kubelet and containerd: their shims have this node's socket in their command."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if "containerd-shim" in command and str(self.folder) in command:
                self._kill_tree(int(process.name))

    def _kill_tree(self, parent: int) -> None:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            children = []
        for child in children:
            self._kill_tree(int(child))
        try:
            os.kill(parent, 9)
        except ProcessLookupError:
            return

    def _ctr(self, *words: str, check: bool = True) -> int:
        command = ["ctr", "--address", str(self._socket), "--namespace", "k8s.io", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.returncode

    def _run(self, name: str, command: list[str]) -> None:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - closed with the node
        self._logs.append(log)
        self._processes.append(
            subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        )
