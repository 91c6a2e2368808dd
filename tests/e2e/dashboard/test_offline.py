"""All pages work where there is no network at all: these tests run again in a namespace that has only loopback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.helpers.controllers import ROOT
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

TESTS = "job__is_launched_preempted_read_and_cancelled or (every_page__is_accessible and 390 and light) or console"
# Takes loopback up, shows that nothing else is there, and runs the tests.
PROGRAM = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
assert [name for _, name in socket.if_nameindex()] == ["lo"], socket.if_nameindex()
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may create a network namespace")
def test_pages__work_without_a_network() -> None:
    words = [
        "-n",
        "0",
        "-q",
        "-m",
        "not long",
        "-p",
        "no:cacheprovider",
        "-k",
        TESTS,
        "tests/e2e/dashboard/test_dashboard.py",
    ]
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PROGRAM, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout, done.stdout
