"""A certificate authority that speaks ACME: Pebble, the test server of Let's Encrypt, with a DNS server of its own.

It checks signatures and nonces (some of which it rejects), and fetches the token of HTTP-01 from the domain, each of
which is this computer. Debian has it: scripts/ensure-haproxy.sh installs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure.controller.runtime.clock import SystemClock
from perdure.controller.runtime.security.certificates import self_signed
from support.helpers.timing import wait_until

BLOCKED = "blocked.example.org"
"""A domain that it refuses."""
HAS_PEBBLE = all(shutil.which(name) for name in ("pebble", "pebble-challtestsrv"))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True)
class Authority:
    """`directory`: its URL, trusted by `ca_file`. `http_port`: where it fetches tokens."""

    directory: str
    ca_file: Path
    http_port: int
    management: str
    log: Path

    def root(self) -> str:
        """What the certificates that it issues are trusted by."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        with urllib.request.urlopen(f"{self.management}/roots/0", context=context) as answer:
            return str(answer.read().decode())

    def config(self, **more: object) -> str:
        """`services` of config.yaml."""
        section = {"directory": self.directory, "ca_file": str(self.ca_file), "http_port": self.http_port}
        return json.dumps({"services": {"acme": {**section, "agree_to_terms": True, **more}}})


@contextlib.contextmanager
def running_authority(folder: Path, *, valid_s: int = 90 * 86_400) -> Iterator[Authority]:
    """`valid_s`: how long its certificates are valid."""
    folder.mkdir(exist_ok=True)
    key, cert = self_signed(("localhost", "127.0.0.1"), SystemClock().now())
    (folder / "key.pem").write_bytes(key)
    (folder / "cert.pem").write_bytes(cert)
    acme, management, http, dns = (free_port() for _ in range(4))
    config = {
        "listenAddress": f"127.0.0.1:{acme}",
        "managementListenAddress": f"127.0.0.1:{management}",
        "certificate": str(folder / "cert.pem"),
        "privateKey": str(folder / "key.pem"),
        "httpPort": http,
        "tlsPort": free_port(),
        "ocspResponderURL": "",
        "externalAccountBindingRequired": False,
        "certificateValidityPeriod": valid_s,
        "domainBlocklist": [BLOCKED],
    }
    (folder / "config.json").write_text(json.dumps({"pebble": config}))
    environ = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "20"}
    names = ["pebble-challtestsrv", "-dns01", f"127.0.0.1:{dns}", "-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]
    names += ["-management", f"127.0.0.1:{free_port()}", "-http01", "", "-https01", "", "-tlsalpn01", ""]
    server = ["pebble", "-config", str(folder / "config.json"), "-strict", "-dnsserver", f"127.0.0.1:{dns}"]
    with open(folder / "pebble.log", "wb") as log:
        processes = [subprocess.Popen(one, stdout=log, stderr=log, env=environ) for one in (names, server)]
    try:
        wait_until(lambda: _listens(acme) and _listens(management), "Pebble", 30)
        yield Authority(
            f"https://127.0.0.1:{acme}/dir",
            folder / "cert.pem",
            http,
            f"https://127.0.0.1:{management}",
            folder / "pebble.log",
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
