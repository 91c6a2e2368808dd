"""The servers of a real Kubernetes on this computer: etcd, API server, controller manager and scheduler.

They are built by scripts/ensure-kubernetes.sh. Nodes are objects without a kubelet (`hollow_nodes`), or this computer
with a real one (`kubelet`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any
from urllib.request import Request, urlopen

import yaml

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError, ConnectionBroken, NotConnected
from perdure.controller.clouds.kubernetes.api.kubeconfig import Kubeconfig
from support.helpers.ports import unused_port
from support.helpers.timing import scaled, wait_until

PROGRAMS = Path(__file__).resolve().parents[3] / "build/kubernetes/bin"
ADMIN, CONTROLLERS, SCHEDULER, KUBELET = "admin", "controllers", "scheduler", "kubelet"
#: How long a node may be silent before the node controller marks it.
NODE_GRACE_S = 6
_START_S = 60.0
# What each component may do comes from its user's group or name, as in a cluster that kubeadm has made.
_USERS = {
    ADMIN: '"system:masters"',
    CONTROLLERS: '"system:masters"',
    SCHEDULER: '"system:masters"',
    KUBELET: '"system:masters"',
}


def missing() -> str | None:
    """What this machine lacks to run the servers; None if nothing."""
    for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        if not (PROGRAMS / program).exists():
            return f"{program} is not built: run scripts/ensure-kubernetes.sh"
    return None if shutil.which("etcd") else "etcd is not installed: run scripts/ensure-kubernetes.sh"


class _OwnClient(ApiClient):
    """That of the cluster's own parts: what a test does to the controller's requests does not concern it."""

    request = ApiClient.request


class Servers:
    """The servers of one cluster. `folder`: of their files."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-kubernetes-", dir=_memory_folder()))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []
        self.port, self._etcd_port = unused_port(), unused_port()
        self.certificates = self.folder / "certificates"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        try:
            self._write_identities()
            self._start_etcd()
            self.start_api_server()
            self._wait_for_api_server()
            self._start_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kubeconfig(self, user: str = ADMIN, *, context: str = "real", namespace: str = "default") -> dict[str, Any]:
        """A kubeconfig of one of the components' users."""
        return self.kubeconfig_with({"token": f"token-{user}"}, context=context, namespace=namespace)

    def kubeconfig_with(self, user: dict[str, Any], *, context: str = "real", namespace: str) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self.certificates / "apiserver.crt")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "contexts": [{"name": context, "context": {"cluster": context, "user": context, "namespace": namespace}}],
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": user}],
        }

    @property
    def environ(self) -> dict[str, str]:
        """Of somebody who may do everything."""
        return {"KUBECONFIG": str(self.folder / f"{ADMIN}.kubeconfig")}

    def client(self, user: str = ADMIN) -> ApiClient:
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(yaml.safe_dump(self.kubeconfig(user)))
        return _OwnClient(Kubeconfig({}, [str(path)]).access("real"))

    # ---- faults ----

    def restart_api_server(self) -> None:
        """Its cache of watches is empty afterwards: older versions are known to etcd alone."""
        self.kill_api_server()
        self.start_api_server()
        self._wait_for_api_server()

    def kill_api_server(self) -> None:
        """At once: it would wait for open watches."""
        self._processes["kube-apiserver"].kill()
        self._processes["kube-apiserver"].wait()

    def compact(self) -> None:
        """Forget all versions but the present ones, as etcd does every five minutes."""
        status = self._ask_etcd("/v3/kv/range", {"key": "AA=="})
        self._ask_etcd("/v3/kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    # ---- private ----

    def _write_identities(self) -> None:
        self.certificates.mkdir(parents=True)
        tokens = [f"token-{user},{user},{number},{groups}" for number, (user, groups) in enumerate(_USERS.items())]
        (self.folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        public = ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(self.folder / "accounts.pub")]
        subprocess.run(public, check=True, capture_output=True)

    def _start_etcd(self) -> None:
        peers = f"http://127.0.0.1:{unused_port()}"
        url = f"http://127.0.0.1:{self._etcd_port}"
        urls = ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers]
        urls += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        self._run("etcd", ["etcd", "--data-dir", str(self.folder / "etcd"), *urls])

    def start_api_server(self) -> None:
        self._run(
            "kube-apiserver",
            [
                str(PROGRAMS / "kube-apiserver"),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={self.certificates}",
                # Where pods would find it by its Service: no test uses that.
                "--advertise-address=192.0.2.1",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=198.18.0.0/24",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self.folder / 'accounts.pub'}",
                f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
                "--authorization-mode=RBAC",
                "--enable-admission-plugins=PodSecurityPolicy",
                "--allow-privileged=true",
            ],
        )

    def _start_controllers(self) -> None:
        for user in (CONTROLLERS, SCHEDULER):
            self.client(user)
        self._run(
            "kube-controller-manager",
            [
                str(PROGRAMS / "kube-controller-manager"),
                f"--kubeconfig={self.folder / f'{CONTROLLERS}.kubeconfig'}",
                f"--service-account-private-key-file={self.folder / 'accounts.key'}",
                f"--root-ca-file={self.certificates / 'apiserver.crt'}",
                "--leader-elect=false",
                "--port=0",
                f"--secure-port={unused_port()}",
                f"--cert-dir={self.folder / 'controllers'}",
                "--node-monitor-period=1s",
                f"--node-monitor-grace-period={NODE_GRACE_S}s",
                "--node-startup-grace-period=20s",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
        )
        self._run(
            "kube-scheduler",
            [
                str(PROGRAMS / "kube-scheduler"),
                f"--kubeconfig={self.folder / f'{SCHEDULER}.kubeconfig'}",
                "--leader-elect=false",
                "--port=0",
                f"--secure-port={unused_port()}",
                f"--cert-dir={self.folder / 'scheduler'}",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
        )

    def _wait_for_api_server(self) -> None:
        """It makes its certificate at its first start."""

        def is_ready() -> bool:
            assert self._processes["kube-apiserver"].poll() is None, self.log("kube-apiserver")[-3000:]
            try:
                # It answers before its caches are full: then it knows no roles yet, and forbids everything.
                return _is_ready(self.client())
            except (ApiError, ConnectionBroken, NotConnected, CloudRejected):
                return False

        wait_until(is_ready, "the API server", _START_S, poll_s=0.1)

    def _ask_etcd(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = Request(f"http://127.0.0.1:{self._etcd_port}{path}", json.dumps(body).encode())
        with urlopen(request, timeout=scaled(10)) as response:
            return dict(json.load(response))

    def _run(self, name: str, command: list[str]) -> None:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - closed with the servers
        self._logs.append(log)
        self._processes[name] = subprocess.Popen(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _is_ready(client: ApiClient) -> bool:
    return "rbac" in str(client.request("GET", "/readyz", query={"verbose": ""}, decode=lambda body: {"text": body}))


def _memory_folder() -> str | None:
    """A folder in memory, if there is one: etcd waits for the disk at every change."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
