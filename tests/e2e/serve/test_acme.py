"""An endpoint with a certificate of a real ACME server: got, renewed while callers stream, and kept over a restart."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from perdure.sdk import serve
from support.helpers.acme_authority import BLOCKED, HAS_PEBBLE, Authority, running_authority
from support.helpers.services import HAS_HAPROXY, ServiceHost, running_services, service_task
from support.helpers.timing import scaled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (HAS_HAPROXY and HAS_PEBBLE), reason="run scripts/ensure-haproxy.sh"),
]

NAME, DOMAIN = "model", "model.example.org"
VALID_S = 45  # a certificate is renewed 30 s after it was issued


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with running_authority(tmp_path_factory.mktemp("pebble"), valid_s=VALID_S) as one:
        yield one


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[ServiceHost]:
    with running_services(tmp_path_factory.mktemp("home"), authority.config()) as one:
        yield one


class Https(http.client.HTTPSConnection):
    """To a domain that is this computer."""

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), scaled(60))
        self.sock = self._context.wrap_socket(plain, server_hostname=self.host)  # type: ignore[attr-defined]


def connection(endpoint: str, authority: Authority) -> Https:
    """Trusts the authority alone, and checks the domain."""
    parts = urlsplit(endpoint)
    return Https(parts.hostname or "", parts.port, context=ssl.create_default_context(cadata=authority.root()))


def serial(endpoint: str, authority: Authority) -> str:
    """That of the certificate that is served; "" while none of the authority is."""
    with contextlib.suppress(ssl.SSLError), contextlib.closing(connection(endpoint, authority)) as link:
        link.connect()
        certificate = link.sock.getpeercert()
        return str(certificate["serialNumber"]) if certificate else ""
    return ""


def test_endpoint__has_a_certificate_that_is_renewed(sky: ServiceHost, authority: Authority) -> None:
    section = {"tls": {"acme": DOMAIN}}
    caller = sky.up(NAME, service_task(section, envs={"TOKEN_S": "0.2"}), ready=1)
    assert caller.endpoint.startswith(f"https://{DOMAIN}:")
    sky.controller.until(lambda: serial(caller.endpoint, authority), "a certificate of the authority")
    first, pid = serial(caller.endpoint, authority), sky.proxy_pid(NAME)
    headers = {"Authorization": f"Bearer {caller.token}"}
    with contextlib.closing(connection(caller.endpoint, authority)) as link:
        body = json.dumps({"stream": True, "max_tokens": 400})
        link.request("POST", "/v1/chat/completions", body, headers)
        answer = link.getresponse()
        assert answer.status == 200
        events, served = 0, first
        while served in (first, "") and (line := answer.readline()):
            events += line.startswith(b"data: {")
            served = serial(caller.endpoint, authority)
        assert events > 0
        assert served not in (first, ""), "it was renewed while the stream went on"
        assert answer.readline(), "the stream goes on"
    assert sky.proxy_pid(NAME) == pid
    timeline = sky.controller.perdure("serve", "logs", NAME, "--controller").stdout
    assert timeline.count("certificate_issued") >= 2
    assert sky.get(NAME)["message"] == ""


def test_certificate__is_kept_by_the_next_controller(sky: ServiceHost, authority: Authority) -> None:
    endpoint, token = serve.token(NAME, client=sky.client).values()
    sky.kill_daemon()
    sky.until_ready(NAME, 1)
    sky.controller.until(lambda: serial(str(endpoint), authority), "a certificate of the authority")
    with contextlib.closing(connection(str(endpoint), authority)) as link:
        link.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
        assert link.getresponse().status == 200
    others = {"local", "artifacts"}  # machines, and programs
    files = [path for path in sky.controller.home.rglob("*") if path.is_file() and not others & set(path.parts)]
    assert [path for path in files if b"PRIVATE KEY" in path.read_bytes()] == []


def test_authority__that_refuses_is_shown(sky: ServiceHost, authority: Authority) -> None:
    sky.up("blocked", service_task({"tls": {"acme": BLOCKED}}), ready=None)
    service = sky.until("blocked", lambda one: "no new certificate" in one["message"], "a message")
    assert BLOCKED in service["message"]
    assert "the next try is at" in service["message"]
    sky.controller.perdure("serve", "down", "blocked", "--yes")
