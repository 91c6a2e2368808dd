"""A real daemon and real agents with a real network between them, which can be broken in one direction or both.

The test's thread, and every process that it starts, runs in a new network namespace.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator

import pytest

from integration.network.machines import CONTROLLER, CONTROLLER_MAC, ip
from integration.network.networked_daemon import Eventually, Rig, until
from perdure.controller.clouds.local.machine import syscalls

CLONE_NEWNET = 0x40000000
# Agents reconnect within 5 s. A shorter node_timeout_s would write off healthy nodes.
CONFIG = """
listen: {host: 10.77.0.1, port: 8700, trust_proxy_tls: true}
timeouts: {node_timeout_s: 8, drain_timeout_s: 3, describe_interval_s: 1}
nodes: {heartbeat_interval_s: 0.5}
"""


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """Runs this thread, and every process that it starts, in a new network namespace with a bridge for machines."""
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"partitions need root and {', '.join(missing) or 'the tools that are here'}")
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        syscalls.unshare(CLONE_NEWNET)
    except OSError as error:
        pytest.skip(f"a network namespace cannot be created here: {error}")
    try:
        ip("link", "set", "lo", "up")
        ip("link", "add", "bridge0", "address", CONTROLLER_MAC, "type", "bridge")
        ip("address", "add", f"{CONTROLLER}/24", "dev", "bridge0")
        ip("link", "set", "bridge0", "up")
        yield
    finally:
        ctypes.CDLL(None).setns(before, CLONE_NEWNET)
        os.close(before)


@pytest.fixture(scope="module")
def config() -> str:
    """The daemon's configuration; a module may override it."""
    return CONFIG


@pytest.fixture(scope="module")
def rig(network: None, config: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(config)
    rig = Rig(home)
    rig.start()
    yield rig
    rig.end()


@pytest.fixture
def eventually() -> Eventually:
    """`until`, which waits for a condition."""
    return until
