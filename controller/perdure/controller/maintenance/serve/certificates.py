"""Gets and renews the certificates of endpoints that want one by ACME: a thread of a controller.

Until its first certificate, an endpoint has one that nobody trusts. An order that fails is repeated, ever more rarely.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import Engine, Row

from perdure.controller.maintenance.serve.acme_orders import IssuedCertificate, OrderFailed, renew_at
from perdure.controller.maintenance.serve.shared_state import ServiceSharing
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.services import events, records
from perdure.controller.store.services.records import ServiceLost
from perdure.controller.submit.serve.endpoints import Endpoint, acme_domain

log = structlog.get_logger(__name__)

INTERVAL_S = 10.0
RETRY_S, MAX_RETRY_S = 60.0, 6 * 3600.0
"""An authority limits failed validations, to some per hour."""


class ServiceCertificates:
    """`order`: gets a certificate of a domain, or raises OrderFailed. `on_change`: called when one has come."""

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        keyring: Keyring,
        sharing: ServiceSharing,
        *,
        order: Callable[[str], IssuedCertificate],
        on_change: Callable[[], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._keyring = keyring
        self._sharing = sharing
        self._order = order
        self._on_change = on_change
        self._failures: dict[str, tuple[int, float, str]] = {}  # domain → how many in a row, when to retry, and why
        self._woken = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="certificates", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for an order that is under way: another one is made later."""
        self._is_stopped = True
        self._woken.set()

    def wake(self) -> None:
        """Look at once. From any thread."""
        self._woken.set()

    def problem(self, domain: str) -> str:
        """Why there is no new certificate of a domain; "" if none is needed. From any thread."""
        failure = self._failures.get(domain)
        if failure is None:
            return ""
        _, retry_at, why = failure
        at = datetime.fromtimestamp(retry_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"no new certificate of {domain}: {why}; the next try is at {at}"

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self.check()
            except UNAVAILABLE as error:
                log.warning("database.unavailable", error=str(error))
            except Exception:  # a bug must not end the thread, on which every certificate depends
                log.exception("certificates.failed")
            self._woken.wait(INTERVAL_S)
            self._woken.clear()

    def check(self) -> None:
        """Get the certificates that are due. Raises what the database raises."""
        with self._database.connect() as conn:
            wanted = []
            for row in records.active(conn):
                domain = acme_domain(records.version(conn, row.id, row.version).section)
                if domain and self._sharing.owns(row):
                    wanted.append((row, domain))
        self._failures = {one: self._failures[one] for one in self._failures.keys() & {name for _, name in wanted}}
        for row, domain in wanted:
            if self._is_stopped:
                return
            if self._is_due(row, domain):
                self._get(row, domain)

    def _is_due(self, row: Row[Any], domain: str) -> bool:
        now = self._clock.now()
        if domain in self._failures and now < self._failures[domain][1]:
            return False
        endpoint = Endpoint(**self._keyring.unseal(row.secrets))
        return endpoint.acme != domain or now >= renew_at(endpoint.tls_cert)

    def _get(self, row: Row[Any], domain: str) -> None:
        try:
            certificate = self._order(domain)
        except OrderFailed as error:
            self._note_failure(row, domain, str(error))
            return
        try:
            with self._sharing.writing(row.id) as conn:
                newest = records.get(conn, row.id)
                if newest is None or newest.secrets is None:
                    return  # it is down
                endpoint = Endpoint(**self._keyring.unseal(newest.secrets))
                if acme_domain(records.version(conn, row.id, newest.version).section) != domain:
                    return  # it was updated meanwhile
                endpoint = replace(endpoint, acme=domain, tls_key=certificate.key, tls_cert=certificate.cert)
                records.change(conn, row.id, secrets=self._keyring.seal(vars(endpoint).copy()))
                message = f"of {domain}, to be renewed from {_day(renew_at(certificate.cert))}"
                events.add(conn, row.id, "service.certificate_issued", self._clock.now(), message=message)
        except ServiceLost:  # its new owner gets one
            return
        self._failures.pop(domain, None)
        log.info("certificate.issued", service=row.name, domain=domain)
        self._on_change()

    def _note_failure(self, row: Row[Any], domain: str, why: str) -> None:
        count = self._failures[domain][0] + 1 if domain in self._failures else 1
        now = self._clock.now()
        self._failures[domain] = (count, now + min(MAX_RETRY_S, RETRY_S * 2.0 ** (count - 1)), why)
        log.warning("certificate.not_issued", service=row.name, domain=domain, why=why)
        if count == 1:
            with self._database.begin() as conn:
                events.add(conn, row.id, "service.certificate_failed", now, message=f"of {domain}: {why}")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
