"""The machines of a cluster by its name: ssh, scp, forwarded ports and commands."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.enter.conftest import Entered, needs_ssh
from e2e.enter.test_ssh import SERVER, ssh, until_served
from support.helpers.controllers import Controller
from support.helpers.ports import unused_port
from support.helpers.timing import pause, scaled, wait_until


@dataclass(frozen=True)
class EnteredCluster(Entered):
    """A cluster that is up, and the commands of its user."""

    cluster: str = "Dev_1"

    @property
    def name(self) -> str:
        return self.cluster


@pytest.fixture(scope="module")
def cluster(controller: Controller) -> Iterator[EnteredCluster]:
    one = EnteredCluster(controller, 0)
    controller.perdure("launch", "-c", one.name, "--num-nodes", 2, "--yes")
    assert controller.perdure("exec", one.name, "--", "echo 'a file' > made.txt").returncode == 0
    yield one
    controller.perdure("down", "--all", "--yes")


@pytest.fixture(scope="module")
def ssh_cluster(cluster: EnteredCluster) -> EnteredCluster:
    """The cluster, after its user has used `perdure ssh` for the first time."""
    done = cluster.run("ssh", cluster.name, "true")
    assert done.returncode == 0, done.stderr
    return cluster


@needs_ssh
def test_ssh__knows_every_node_of_a_cluster_and_asks_nothing(ssh_cluster: EnteredCluster) -> None:
    done = ssh_cluster.run("ssh", ssh_cluster.name, "echo $SKYPILOT_NODE_RANK; exit 5")
    assert (done.returncode, done.stdout) == (5, b"0\n"), done.stderr
    done = ssh(ssh_cluster, "-o", "BatchMode=yes", f"{ssh_cluster.name}-worker1", "echo $SKYPILOT_NODE_RANK")
    assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr


@needs_ssh
def test_scp__copies_both_ways(ssh_cluster: EnteredCluster, tmp_path: Path) -> None:
    data, option = os.urandom(200_000), ssh_cluster.ssh_option()
    (tmp_path / "sent").write_bytes(data)
    up = ssh_cluster.run("-q", *option, tmp_path / "sent", f"{ssh_cluster.name}:copied", program="scp")
    assert up.returncode == 0, up.stderr
    down = ssh_cluster.run("-q", *option, f"{ssh_cluster.name}:copied", tmp_path / "back", program="scp")
    assert down.returncode == 0, down.stderr
    assert (tmp_path / "back").read_bytes() == data


@needs_ssh
def test_editor__has_its_server_and_its_ports_over_one_connection(ssh_cluster: EnteredCluster) -> None:
    """As editors do that work on another machine: a shell without a terminal starts a server, and SOCKS reaches it."""
    remote, local = unused_port(), unused_port()
    words = ["-T", "-o", "BatchMode=yes", "-D", local, ssh_cluster.name, "bash"]
    with ssh_cluster.popen(*ssh_cluster.ssh_option(), *words, program="ssh") as editor:
        assert editor.stdin is not None
        assert editor.stdout is not None
        editor.stdin.write(
            f"cd ~/sky_workdir; python3 -m http.server --bind 127.0.0.1 {remote} & echo started\n".encode()
        )
        editor.stdin.flush()
        assert editor.stdout.readline() == b"started\n"
        answer = wait_until(lambda: over_socks(local, remote, b"GET /made.txt HTTP/1.0\r\n\r\n"), "the server", 30)
        assert answer.endswith(b"a file\n")


def over_socks(proxy: int, port: int, request: bytes) -> bytes | None:
    """The answer of a server at 127.0.0.1 behind a SOCKS 5 proxy; None while it does not answer."""
    try:
        with socket.create_connection(("127.0.0.1", proxy), timeout=scaled(10)) as link:
            link.sendall(b"\x05\x01\x00")
            if link.recv(2) != b"\x05\x00":
                return None
            link.sendall(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
            if link.recv(10)[1:2] != b"\x00":
                return None
            link.sendall(request)
            return b"".join(iter(lambda: link.recv(65536), b"")) or None
    except OSError:
        return None


@needs_ssh
@pytest.mark.slow
def test_forwarding_by_ssh__keeps_a_cluster_up(ssh_cluster: EnteredCluster) -> None:
    """As the user of a notebook does, with neither a job nor a terminal."""
    perdure, local = ssh_cluster.controller.perdure, unused_port()

    def status() -> str:
        (cluster,) = json.loads(perdure("status", "tunneled", "-o", "json").stdout)
        return str(cluster["status"])

    perdure("launch", "-c", "tunneled", "--cpus", 1, "--yes")
    tunnel = [*ssh_cluster.ssh_option(), "-N", "-L", f"{local}:127.0.0.1:{unused_port()}", "tunneled"]
    with ssh_cluster.popen(*tunnel, program="ssh"):
        wait_until(lambda: is_open(local), "the tunnel", 30)
        perdure("autostop", "tunneled", "-i", 2 / 60)
        pause(5)
        assert is_open(local)
        assert status() == "UP"
    wait_until(lambda: status() == "STOPPED", "the stop after the end of the tunnel", 60)
    perdure("start", "tunneled", "--yes")
    (started,) = json.loads(perdure("status", "tunneled", "-o", "json").stdout)
    assert started["autostop_s"] == pytest.approx(2)
    perdure("down", "tunneled", "--yes")


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=scaled(10)).close()
    except OSError:
        return False
    return True


@needs_ssh
def test_machine__listens_on_nothing_while_it_is_entered(ssh_cluster: EnteredCluster) -> None:
    """So that it works behind a firewall that lets nothing in."""
    with ssh_cluster.popen("ssh", ssh_cluster.name, "echo in; sleep 600") as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"in\n"
        listening = listening_sockets()
        assert listening, "the controller listens"
        num_machines = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"PERDURE_STATE_DIR=" not in (process / "environ").read_bytes():
                    continue
                num_machines += 1
                sockets = {os.readlink(link) for link in (process / "fd").iterdir()}
                assert not sockets & listening, (process / "cmdline").read_bytes()
        assert num_machines >= 2


def listening_sockets() -> set[str]:
    """The sockets of this computer that accept connections, as links of /proc/PID/fd."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {f"socket:[{fields[9]}]" for fields in lines if fields[3] == "0A"}


def test_port_forward__reaches_a_server_on_a_cluster(cluster: EnteredCluster) -> None:
    remote, local = unused_port(), unused_port()
    serve = ["jobs", "exec", cluster.name, "--", "python3", "-c", SERVER.format(port=remote)]
    with cluster.popen(*serve), cluster.popen("port-forward", cluster.name, f"{local}:{remote}"):
        assert b"a file" in until_served(local)


def test_jobs_exec__runs_on_the_chosen_node_of_a_cluster(cluster: EnteredCluster) -> None:
    done = cluster.run("jobs", "exec", cluster.name, "--rank", 1, "--", "echo $SKYPILOT_NODE_RANK")
    assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr


def test_name_without_a_machine__says_what_to_do(cluster: EnteredCluster) -> None:
    done = cluster.run("jobs", "exec", f"{cluster.name}-worker2", "--", "true")
    assert done.returncode != 0
    assert f"nodes: {cluster.name}, {cluster.name}-worker1" in done.stderr.decode()
    done = cluster.run("jobs", "exec", "other", "--", "true")
    assert "job-ID or CLUSTER for the first node" in done.stderr.decode()


@pytest.mark.parametrize("name", ["job-7", "dev-worker1"])
def test_cluster__cannot_have_the_name_of_a_machine(controller: Controller, name: str) -> None:
    done = controller.perdure("launch", "-c", name, "--yes", check=False)
    assert done.returncode != 0
    assert f"{name!r} names a machine, not a cluster" in done.stderr


@needs_ssh
def test_ssh__knows_clusters_while_they_exist(ssh_cluster: EnteredCluster) -> None:
    ssh_cluster.controller.perdure("launch", "-c", "other", "--yes")
    done = ssh(ssh_cluster, "-o", "BatchMode=yes", "other", "echo here")
    assert (done.returncode, done.stdout) == (0, b"here\n"), done.stderr
    ssh_cluster.controller.perdure("down", "other", "--yes")
    hosts = (ssh_cluster.controller.home / "ssh/config").read_text()
    assert "other" not in hosts
    assert ssh_cluster.name in hosts


@needs_ssh
def test_stop_and_start__keep_the_name_and_the_host_key(ssh_cluster: EnteredCluster) -> None:
    known = (ssh_cluster.controller.home / "ssh/known_hosts").read_text()
    ssh_cluster.controller.perdure("stop", ssh_cluster.name, "--yes")
    done = ssh(ssh_cluster, "-o", "BatchMode=yes", ssh_cluster.name, "true")
    assert done.returncode == 255
    assert f"start it: perdure start {ssh_cluster.name}" in done.stderr.decode()
    ssh_cluster.controller.perdure("start", ssh_cluster.name, "--yes")
    done = ssh(ssh_cluster, "-o", "BatchMode=yes", ssh_cluster.name, "echo again")
    assert (done.returncode, done.stdout) == (0, b"again\n"), done.stderr
    assert (ssh_cluster.controller.home / "ssh/known_hosts").read_text() == known
