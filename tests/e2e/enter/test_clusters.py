"""The machines of a cluster by its name: ssh, scp, forwarded ports and commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.enter.conftest import Entered, needs_ssh
from e2e.enter.test_ssh import SERVER, ssh, until_served
from support.helpers.controllers import Controller
from support.helpers.ports import unused_port


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
