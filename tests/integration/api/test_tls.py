"""TLS end to end: a daemon on an address of the network, a pinned client, a pinned node, and everybody else."""

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
from threading import Event
from typing import Any

import pytest
import trustme

from perdure.agent.controller import Controller, Unreachable
from perdure.controller.clock import SystemClock
from perdure.controller.listening import read_listening
from perdure.controller.settings import SettingsError, read_settings
from perdure.controller.tls import tls_of
from perdure.sdk.client import Client, ConnectionLost
from perdure.sdk.endpoint import Endpoint, NoController, find
from perdure.sdk.pinning import WrongCertificate

PATIENCE_S = 90.0


def own_address() -> str | None:
    """An address of this computer that is not loopback; none is called."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])
    return None


ADDRESS = own_address()
CONFIG = f"listen: {{host: {ADDRESS}, tls: auto, names: [perdure.example.com]}}\n"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, start_daemon: Any) -> Iterator[Any]:
    if ADDRESS is None:
        pytest.skip("this computer has no address but loopback")
    home = tmp_path_factory.mktemp("secured") / "home"
    one = start_daemon(home, CONFIG)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def client(secured: Any) -> Client:
    return Client(Endpoint(secured.url, secured.token, fingerprint=secured.record["fingerprint"]))


def test_a_job_runs_with_its_files_over_the_pinned_connection(secured: Any, tmp_path: Path) -> None:
    assert secured.url.startswith(f"https://{ADDRESS}:")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hello.txt").write_text("carried over TLS\n")
    task = tmp_path / "task.yaml"
    task.write_text(f"workdir: {tmp_path}/work\nrun: cat hello.txt; env | grep -c FINGERPRINT; exit 0\n")
    said = perdure(secured, "jobs", "launch", str(task), "--yes")
    assert "carried over TLS\n0\n" in said.stdout, "and the workload does not hear of the controller's certificate"


def perdure(secured: Any, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    named = {
        "PERDURE_ENDPOINT": secured.url,
        "PERDURE_TOKEN": secured.token,
        "PERDURE_FINGERPRINT": secured.record["fingerprint"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *words],
        env={**inherited, "PERDURE_HOME": str(secured.home / "nobodys"), **named, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if not environ:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_owner_on_the_same_computer_needs_no_configuration(secured: Any) -> None:
    found = find({"PERDURE_HOME": str(secured.home)})
    assert found is not None
    assert found.fingerprint == secured.record["fingerprint"]
    assert Client(found).controller()["endpoint"] == secured.url
    assert f"sha256:{found.fingerprint}" in perdure(secured, "controller", "status").stdout


@pytest.mark.parametrize(
    ("fingerprint", "said"),
    [("0" * 64, "shows another certificate"), ("", "not to be trusted"), ("abc", "is no SHA-256")],
)
def test_a_wrong_certificate_is_one_clear_error(secured: Any, fingerprint: str, said: str) -> None:
    done = perdure(secured, "jobs", "queue", PERDURE_FINGERPRINT=fingerprint)
    assert done.returncode == 1
    assert said in done.stderr
    assert "PERDURE_FINGERPRINT" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_plain_http_gets_no_answer_and_no_token_is_sent_over_it(secured: Any) -> None:
    done = perdure(
        secured, "jobs", "queue", PERDURE_ENDPOINT=secured.url.replace("https", "http"), PERDURE_FINGERPRINT=""
    )
    assert done.returncode == 1
    assert "plain text" in done.stderr
    with pytest.raises(ConnectionLost):
        Client(Endpoint(secured.url.replace("https", "http"), "t")).clouds()


class Impostor:
    """A TLS server with a certificate of its own, that keeps all that it is told."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.told = b""
        self.shaken = 0
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
                with contextlib.suppress(OSError), self._context.wrap_socket(connection, server_side=True) as spoken:
                    self.shaken += 1
                    self.told += spoken.recv(4096)

    def close(self) -> None:
        """Stop listening. May be called again."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Impostor]:
    one = Impostor(tmp_path)
    # Even one whom an authority vouches for is not the pinned one.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    yield one
    one.close()


def test_nothing_is_told_to_somebody_else(impostor: Impostor, tmp_path: Path) -> None:
    with pytest.raises(WrongCertificate, match="another certificate"):
        Client(Endpoint(impostor.url, "user-token", fingerprint="0" * 64)).clouds()
    node = Controller(impostor.url, "attempt-token", 0, fingerprint="0" * 64)
    for call in (node.spec, node.open_channel, lambda: node.download("artifacts", "0" * 64, tmp_path / "x")):
        with pytest.raises(Unreachable, match="another certificate"):
            call()
    impostor.close()
    assert impostor.shaken == 4, "they did speak TLS with it"
    assert impostor.told == b""


def test_the_certificate_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    listening = read_listening({"tls": "auto", "names": ["a.example"]}, host="127.0.0.1", home=tmp_path)
    first = tls_of(listening, host="127.0.0.1", clock=SystemClock())
    assert first is not None
    assert tls_of(listening, host="127.0.0.1", clock=SystemClock()) == first
    assert (
        first.pin == first.fingerprint == hashlib.sha256(ssl.PEM_cert_to_DER_cert(first.cert.read_text())).hexdigest()
    )
    assert {path.stat().st_mode & 0o777 for path in (first.cert, first.key)} == {0o600}
    assert first.key.parent.stat().st_mode & 0o777 == 0o700
    context = ssl.create_default_context(cafile=str(first.cert))
    assert context.get_ca_certs(), "it can be given to tools that want an authority's file"


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("{host: 0.0.0.0}", "config.yaml:1: listen.host: 0.0.0.0 is not this computer alone"),
        ("{host: 192.0.2.77}", "add `tls: auto`, or `plain_http_behind_proxy: true`"),
        ("{tls: yes}", "listen.tls: expected auto, or a mapping"),
        ("{tls: {cert: a.pem}}", "listen.tls: expected auto, or a mapping"),
        ("{tls: {cert: a.pem, key: b.pem}}", "there is no file"),
        ("{tls: {cert: config.yaml, key: config.yaml, pin: 1}}", "pin: expected true or false"),
        ("{names: [a b]}", "listen.names: 'a b' is no DNS name"),
        ("{names: x}", "expected a list of DNS names"),
        ("{plain_http_behind_proxy: 1}", "expected true or false"),
    ],
)
def test_what_is_not_safe_or_not_sense_is_refused(tmp_path: Path, listen: str, said: str) -> None:
    (tmp_path / "config.yaml").write_text(f"listen: {listen}\n")
    with pytest.raises(SettingsError) as refused:
        read_settings(tmp_path)
    assert said in str(refused.value)


def test_a_proxy_in_front_is_taken_at_the_operators_word(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("listen: {host: 0.0.0.0, plain_http_behind_proxy: true}\n")
    assert read_settings(tmp_path).listening.certificate is None


def test_files_that_are_no_certificate_are_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("listen: {tls: {cert: config.yaml, key: config.yaml}}\n")
    with pytest.raises(SettingsError, match="can not be used"):
        tls_of(read_settings(tmp_path).listening, host="127.0.0.1", clock=SystemClock())


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"PERDURE_ENDPOINT": "http://192.0.2.1:1"}, "plain text"),
        ({"PERDURE_ENDPOINT": "http://127.0.0.1:1", "PERDURE_FINGERPRINT": "0" * 64}, "speaks no TLS"),
        ({"PERDURE_ENDPOINT": "https://127.0.0.1:1", "PERDURE_FINGERPRINT": "0" * 63}, "no SHA-256"),
    ],
)
def test_what_the_environment_says_is_checked(environ: dict[str, str], said: str) -> None:
    with pytest.raises(NoController, match=said):
        find({"PERDURE_TOKEN": "t", **environ})


@pytest.mark.parametrize("written", ["{}", "sha256:{}", "SHA256:{}"])
def test_a_fingerprint_may_be_written_as_tools_write_it(written: str) -> None:
    digits = "ab" * 32
    pairs = ":".join(["AB"] * 32)
    for text in (digits, pairs):
        environ = {
            "PERDURE_ENDPOINT": "https://h:1",
            "PERDURE_TOKEN": "t",
            "PERDURE_FINGERPRINT": written.format(text),
        }
        found = find(environ)
        assert found is not None
        assert found.fingerprint == digits


def test_no_process_is_left(secured: Any) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while list(secured.home.glob("local/instances/*/machine")):
        assert time.monotonic() < give_up_at
        Event().wait(0.1)
