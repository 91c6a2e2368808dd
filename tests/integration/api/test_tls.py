"""TLS end to end: a daemon on a network address, a pinned client, a pinned node, and other clients and servers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from integration.api.daemons import Daemon, StartDaemon
from perdure.agent.link.client import ControllerClient, Unreachable
from perdure.controller.api.server.protocols import HEADER_TIMEOUT_S
from perdure.controller.runtime.clock import SystemClock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.listen import read_listen_config
from perdure.controller.runtime.config.settings import read_settings
from perdure.controller.runtime.security.tls import load_tls
from perdure.sdk.connection.client import Client, ConnectionLost
from perdure.sdk.connection.discovery import find
from perdure.sdk.connection.endpoint import Endpoint, NoController
from perdure.sdk.connection.transport import WrongCertificate
from support.helpers.timing import scaled, wait_until

pytestmark = pytest.mark.api

TIMEOUT_S = 90.0


def own_address() -> str | None:
    """An address of this computer that is not loopback. Nothing is sent to find it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])
    return None


ADDRESS = own_address()
CONFIG = f"listen: {{host: {ADDRESS}, tls: auto, dns_names: [perdure.example.com]}}\n"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, start_daemon: StartDaemon) -> Iterator[Daemon]:
    if ADDRESS is None:
        pytest.skip("this computer has no address but loopback")
    home = tmp_path_factory.mktemp("secured") / "home"
    daemon = start_daemon(home, CONFIG)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def client(secured: Daemon) -> Client:
    return Client(Endpoint(secured.url, secured.token, fingerprint=secured.record["fingerprint"]))


def test_pinned_connection__carries_a_job_and_its_files(secured: Daemon, tmp_path: Path) -> None:
    assert secured.url.startswith(f"https://{ADDRESS}:")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hello.txt").write_text("carried over TLS\n")
    task = tmp_path / "task.yaml"
    task.write_text(f"workdir: {tmp_path}/work\nrun: cat hello.txt; env | grep -c FINGERPRINT; exit 0\n")
    result = perdure(secured, "jobs", "launch", str(task), "--yes")
    assert "carried over TLS\n0\n" in result.stdout, "the workload does not see the fingerprint"


def perdure(secured: Daemon, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    named = {
        "PERDURE_ENDPOINT": secured.url,
        "PERDURE_TOKEN": secured.token,
        "PERDURE_FINGERPRINT": secured.record["fingerprint"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *words],
        env={**inherited, "PERDURE_HOME": str(secured.home / "unused"), **named, **environ},
        capture_output=True,
        text=True,
        timeout=scaled(TIMEOUT_S),
        check=False,
    )
    if not environ:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_find__uses_the_home_on_the_same_computer(secured: Daemon) -> None:
    endpoint = find({"PERDURE_HOME": str(secured.home)})
    assert endpoint is not None
    assert endpoint.fingerprint == secured.record["fingerprint"]
    assert Client(endpoint).controller()["endpoint"] == secured.url
    assert f"sha256:{endpoint.fingerprint}" in perdure(secured, "controller", "status").stdout


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [("0" * 64, "another certificate"), ("", "trusted"), ("abc", "SHA-256")],
)
def test_wrong_certificate__is_one_clear_error(secured: Daemon, fingerprint: str, message: str) -> None:
    done = perdure(secured, "jobs", "queue", PERDURE_FINGERPRINT=fingerprint)
    assert done.returncode == 1
    assert message in done.stderr
    assert "PERDURE_FINGERPRINT" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_plain_http__gets_no_response_and_carries_no_token(secured: Daemon) -> None:
    done = perdure(
        secured, "jobs", "queue", PERDURE_ENDPOINT=secured.url.replace("https", "http"), PERDURE_FINGERPRINT=""
    )
    assert done.returncode == 1
    assert "plain text" in done.stderr
    with pytest.raises(ConnectionLost):
        Client(Endpoint(secured.url.replace("https", "http"), "t")).clouds()


def test_unfinished_handshake__is_disconnected_like_a_slow_head(secured: Daemon) -> None:
    port = int(secured.url.rpartition(":")[2])
    with socket.create_connection((ADDRESS, port), timeout=HEADER_TIMEOUT_S + scaled(10)) as silent:
        began_at = time.monotonic()
        assert silent.recv(1) == b""
        assert HEADER_TIMEOUT_S / 2 < time.monotonic() - began_at < HEADER_TIMEOUT_S + scaled(10)


class Impostor:
    """A TLS server with another certificate. It records what it receives."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.received = b""
        self.handshakes = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", "localhost").configure_cert(self._context)
        authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(10)
                with contextlib.suppress(OSError), self._context.wrap_socket(connection, server_side=True) as tls:
                    self.handshakes += 1
                    self.received += tls.recv(4096)

    def close(self) -> None:
        """Stop listening. May be called again."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Impostor]:
    server = Impostor(tmp_path)
    # Its certificate is valid by its authority, but it is not the pinned one.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    yield server
    server.close()


def test_impostor__receives_nothing(impostor: Impostor, tmp_path: Path) -> None:
    with pytest.raises(WrongCertificate, match="another certificate"):
        Client(Endpoint(impostor.url, "user-token", fingerprint="0" * 64)).clouds()
    node = ControllerClient(impostor.url, "attempt-token", 0, fingerprint="0" * 64)
    for call in (node.spec, node.open_channel, lambda: node.download("artifacts", "0" * 64, tmp_path / "x")):
        with pytest.raises(Unreachable, match="another certificate"):
            call()
    impostor.close()
    assert impostor.handshakes == 4, "all clients did a TLS handshake"
    assert impostor.received == b""


def test_certificate__is_generated_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    listening = read_listen_config({"tls": "auto", "dns_names": ["a.example"]}, host="127.0.0.1", home=tmp_path)
    first = load_tls(listening, host="127.0.0.1", clock=SystemClock())
    assert first is not None
    assert load_tls(listening, host="127.0.0.1", clock=SystemClock()) == first
    assert (
        first.pin == first.fingerprint == hashlib.sha256(ssl.PEM_cert_to_DER_cert(first.cert.read_text())).hexdigest()
    )
    assert {path.stat().st_mode & 0o777 for path in (first.cert, first.key)} == {0o600}
    assert first.key.parent.stat().st_mode & 0o777 == 0o700
    context = ssl.create_default_context(cafile=str(first.cert))
    assert context.get_ca_certs(), "tools accept it as a CA file"


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("{host: 0.0.0.0}", "config.yaml:1: listen.host: 0.0.0.0 can be reached from other computers"),
        ("{host: 192.0.2.77}", "add `tls: auto`, or `trust_proxy_tls: true`"),
        ("{tls: yes}", "listen.tls: expected auto, or a mapping"),
        ("{tls: {cert: a.pem}}", "listen.tls: expected auto, or a mapping"),
        ("{tls: {cert: a.pem, key: b.pem}}", "there is no file"),
        ("{tls: {cert: config.yaml, key: config.yaml, pin: 1}}", "pin: expected true or false"),
        ("{dns_names: [a b]}", "listen.dns_names: 'a b' is not a DNS name"),
        ("{dns_names: x}", "expected a list of DNS names"),
        ("{trust_proxy_tls: 1}", "expected true or false"),
    ],
)
def test_listen_config__rejects_unsafe_and_invalid_settings(tmp_path: Path, listen: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(f"listen: {listen}\n")
    with pytest.raises(SettingsError) as caught:
        read_settings(tmp_path)
    assert message in str(caught.value)


def test_listen_config__trusts_a_proxy_if_configured(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("listen: {host: 0.0.0.0, trust_proxy_tls: true}\n")
    assert read_settings(tmp_path).listen.certificate is None


def test_certificate_files__that_are_invalid_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("listen: {tls: {cert: config.yaml, key: config.yaml}}\n")
    with pytest.raises(SettingsError, match="cannot be used"):
        load_tls(read_settings(tmp_path).listen, host="127.0.0.1", clock=SystemClock())


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PERDURE_ENDPOINT": "http://192.0.2.1:1"}, "plain text"),
        ({"PERDURE_ENDPOINT": "http://127.0.0.1:1", "PERDURE_FINGERPRINT": "0" * 64}, "does not use TLS"),
        ({"PERDURE_ENDPOINT": "https://127.0.0.1:1", "PERDURE_FINGERPRINT": "0" * 63}, "SHA-256"),
    ],
)
def test_find__checks_the_environment(environ: dict[str, str], message: str) -> None:
    with pytest.raises(NoController, match=message):
        find({"PERDURE_TOKEN": "t", **environ})


@pytest.mark.parametrize("written", ["{}", "sha256:{}", "SHA256:{}"])
def test_fingerprint__accepts_the_notation_of_tools(written: str) -> None:
    digits = "ab" * 32
    pairs = ":".join(["AB"] * 32)
    for text in (digits, pairs):
        environ = {
            "PERDURE_ENDPOINT": "https://h:1",
            "PERDURE_TOKEN": "t",
            "PERDURE_FINGERPRINT": written.format(text),
        }
        endpoint = find(environ)
        assert endpoint is not None
        assert endpoint.fingerprint == digits


def test_machine_processes__have_ended(secured: Daemon) -> None:
    wait_until(lambda: not list(secured.home.glob("local/instances/*/machine")), "the end of every machine", TIMEOUT_S)
