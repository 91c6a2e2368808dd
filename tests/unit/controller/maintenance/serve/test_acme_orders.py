"""Certificates that a real ACME server issues, and those that it does not."""

from __future__ import annotations

import dataclasses
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from perdure.controller.maintenance.serve import acme_orders
from perdure.controller.maintenance.serve.acme_orders import IssuedCertificate, OrderFailed, answering, order, renew_at
from perdure.controller.runtime.config.acme_config import AcmeConfig
from perdure.controller.runtime.security.certificates import self_signed
from perdure.controller.runtime.security.keyring import Keyring
from support.helpers.acme_authority import HAS_PEBBLE, Authority, free_port, running_authority

KEYRING = Keyring(b"k" * 32, "t", ())
needs_pebble = pytest.mark.skipif(not HAS_PEBBLE, reason="Pebble is not installed: run scripts/ensure-haproxy.sh")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with running_authority(tmp_path_factory.mktemp("pebble")) as one:
        yield one


@pytest.fixture
def config(authority: Authority) -> AcmeConfig:
    return AcmeConfig(authority.directory, "ops@example.org", authority.http_port, authority.ca_file)


def names_of(certificate: IssuedCertificate) -> list[str]:
    """The domains, after a check that key and certificate belong together."""
    first = x509.load_pem_x509_certificates(certificate.cert.encode())[0]
    key = serialization.load_pem_private_key(certificate.key.encode(), None)
    assert key.public_key() == first.public_key()
    return first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)


@pytest.mark.slow
@needs_pebble
def test_order__gets_certificates_with_one_account(config: AcmeConfig, authority: Authority) -> None:
    first = order(config, KEYRING, "127.0.0.1", "model.example.org")
    again = order(config, KEYRING, "127.0.0.1", "model.example.org")
    assert names_of(first) == names_of(again) == ["model.example.org"]
    assert first.key != again.key
    assert first.cert.count("BEGIN CERTIFICATE") == 2, "the chain"
    assert authority.log.read_text().count("There are now 1 accounts") == 1
    with pytest.raises(ConnectionRefusedError):  # after an order, nothing listens
        socket.create_connection(("127.0.0.1", config.http_port))


@pytest.mark.slow
@needs_pebble
def test_order__says_why_a_domain_is_not_validated(config: AcmeConfig) -> None:
    wrong = dataclasses.replace(config, http_port=free_port())
    with pytest.raises(OrderFailed, match=r"could not validate the domain: .*refused"):
        order(wrong, KEYRING, "127.0.0.1", "elsewhere.example.org")


@pytest.mark.slow
@needs_pebble
def test_order__says_that_its_port_is_in_use(config: AcmeConfig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = dataclasses.replace(config, http_port=taken.getsockname()[1])
        with pytest.raises(OrderFailed, match=r"services\.acme\.http_port.*in use"):
            order(config, KEYRING, "127.0.0.1", "another.example.org")


@pytest.mark.slow
@needs_pebble
def test_order__trusts_nobody_without_reason(config: AcmeConfig) -> None:
    with pytest.raises(OrderFailed, match="certificate verify failed"):
        order(dataclasses.replace(config, ca_file=None), KEYRING, "127.0.0.1", "model.example.org")


def test_order__of_an_authority_that_is_away_fails() -> None:
    config = AcmeConfig(f"https://127.0.0.1:{free_port()}/dir", http_port=free_port())
    with pytest.raises(OrderFailed, match="refused"):
        order(config, KEYRING, "127.0.0.1", "model.example.org")


def test_order__needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acme_orders, "find_spec", lambda _name: None)
    with pytest.raises(OrderFailed, match=r"extra \[acme\]"):
        order(AcmeConfig(), KEYRING, "127.0.0.1", "model.example.org")


def test_answering__serves_the_tokens_alone() -> None:
    port = free_port()
    with answering("127.0.0.1", port, {"/.well-known/acme-challenge/a": b"token"}):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/.well-known/acme-challenge/a") as answer:
            assert answer.read() == b"token"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd")


def test_renewal__is_due_after_two_thirds_of_the_life() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    _, cert = self_signed(("x",), now.timestamp())
    whole = timedelta(days=1) + timedelta(days=365 * 20)
    assert renew_at(cert.decode()) == (now - timedelta(days=1) + whole * 2 / 3).timestamp()
