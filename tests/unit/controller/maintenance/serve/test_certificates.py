"""When certificates are ordered by ACME, and what happens to those that cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.api.serve import proxies, services
from perdure.controller.daemon import Daemon
from perdure.controller.maintenance.serve.acme_orders import IssuedCertificate, OrderFailed
from perdure.controller.maintenance.serve.certificates import MAX_RETRY_S, RETRY_S, ServiceCertificates
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.security.certificates import self_signed
from perdure.controller.store.services import events, records
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.recovery.market.services.plan import UpdateMode

DOMAIN = "model.example.org"
CONFIG = "services: {acme: {agree_to_terms: true}}\n"


def task(**tls: str) -> dict[str, Any]:
    section = {"readiness_probe": "/up", **({"tls": tls} if tls else {})}
    return {"service": section, "resources": {"ports": 8080}, "run": "serve"}


class Authority:
    """Issues certificates that are valid for 20 years. `problem`: why it does not."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[str] = []
        self.problem = ""

    def order(self, domain: str) -> IssuedCertificate:
        self.asked.append(domain)
        if self.problem:
            raise OrderFailed(self.problem)
        key, cert = self_signed((domain,), self.clock.now())
        return IssuedCertificate(key.decode(), cert.decode())


class Setting:
    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.daemon = Daemon(Settings(home), self.clock)
        assert self.daemon.api_context.services is not None
        self.services = self.daemon.api_context.services
        self.authority = Authority(self.clock)
        self.changes = 0
        keyring, sharing = self.daemon.api_context.keyring, self.services.sharing
        self.certificates = ServiceCertificates(
            self.daemon.database, self.clock, keyring, sharing, order=self.authority.order, on_change=self.changed
        )

    def changed(self) -> None:
        self.changes += 1

    def up(self, name: str = "model", **tls: str) -> None:
        self.services.requests.up(name, task(**tls), Requester("u"), name, with_token=True, tls={})

    def update(self, key: str, **tls: str) -> None:
        self.services.requests.update("model", task(**tls), Requester("u"), key, UpdateMode.ROLLING, {})

    @property
    def endpoint(self) -> Any:
        return self.services.requests.endpoint_of(self.services.requests.get("model"))

    def kinds(self) -> list[str]:
        with self.daemon.database.connect() as conn:
            return [one.kind for one in events.newest(conn, 1, 100) if "certificate" in one.kind]

    def shown(self) -> dict[str, Any]:
        with self.daemon.database.connect() as conn:
            (one,) = self.services.listing.describe(conn, records.active(conn), self.clock.now())
        return one


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setattr(proxies, "OPEN_TIMEOUT_S", 0.0)  # nothing opens endpoints here
    monkeypatch.setattr(proxies, "find_haproxy", lambda: "/usr/sbin/haproxy")
    (tmp_path / "config.yaml").write_text(CONFIG)
    one = Setting(tmp_path)
    yield one
    one.daemon.socket.close()
    one.daemon.close()


def test_certificate__is_ordered_once_and_renewed_in_time(setting: Setting) -> None:
    setting.up(acme=DOMAIN)
    token, placeholder = setting.endpoint.token, setting.endpoint.tls_cert
    assert setting.endpoint.acme == ""
    assert "BEGIN CERTIFICATE" in placeholder, "nothing is ever sent in the clear"
    for _ in range(3):
        setting.certificates.check()
    assert (setting.authority.asked, setting.changes) == ([DOMAIN], 1)
    first = setting.endpoint
    assert (first.acme, first.token) == (DOMAIN, token)
    assert first.tls_cert != placeholder
    assert setting.shown()["endpoint"].startswith(f"https://{DOMAIN}:")
    setting.clock.advance(14 * 365 * 86_400)
    setting.certificates.check()
    assert setting.authority.asked == [DOMAIN, DOMAIN]
    assert setting.endpoint.tls_cert != first.tls_cert
    assert setting.kinds() == ["service.certificate_issued"] * 2


def test_certificate__that_cannot_be_had_is_tried_ever_more_rarely(setting: Setting) -> None:
    setting.up(acme=DOMAIN)
    setting.authority.problem = "the domain is not this computer"
    waits = []
    for _ in range(12):
        began = setting.clock.now()
        while len(setting.authority.asked) == len(waits):
            setting.certificates.check()
            setting.clock.advance(RETRY_S / 2)
        waits.append(setting.clock.now() - began)
    assert waits[1] < waits[2] < waits[5]
    assert max(waits) <= MAX_RETRY_S + RETRY_S
    assert "the domain is not this computer; the next try is at 20" in setting.certificates.problem(DOMAIN)
    assert setting.kinds() == ["service.certificate_failed"], "once for all tries"
    setting.authority.problem = ""
    setting.clock.advance(MAX_RETRY_S)
    setting.certificates.check()
    assert (setting.certificates.problem(DOMAIN), setting.endpoint.acme) == ("", DOMAIN)


def test_certificate__survives_updates_of_the_same_domain(setting: Setting) -> None:
    setting.up(acme=DOMAIN)
    setting.certificates.check()
    first = setting.endpoint
    setting.update("1", acme=DOMAIN)
    assert setting.endpoint == first
    setting.update("2", acme="other.example.org")
    assert setting.endpoint.acme == ""
    assert setting.endpoint.token == first.token
    setting.certificates.check()
    assert setting.endpoint.acme == "other.example.org"
    setting.update("3")
    setting.certificates.check()
    assert (setting.endpoint.tls_cert, setting.endpoint.acme) == ("", "")
    assert setting.authority.asked == [DOMAIN, "other.example.org"]


def test_certificate__of_a_service_that_changes_meanwhile_is_dropped(setting: Setting) -> None:
    setting.up(acme=DOMAIN)
    real = setting.authority.order

    def slow(domain: str) -> IssuedCertificate:
        setting.update("1")
        return real(domain)

    setting.certificates._order = slow
    setting.certificates.check()
    assert (setting.endpoint.tls_cert, setting.changes) == ("", 0)


def test_up__with_acme_needs_its_configuration(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = Setting(tmp_path / "plain")
    try:
        with pytest.raises(RequestRejected) as rejected:
            plain.up(acme=DOMAIN)
        assert (rejected.value.where, rejected.value.fix) == ("service.tls.acme", services.NO_ACME)
    finally:
        plain.daemon.socket.close()
        plain.daemon.close()
