"""Orders certificates of an ACME authority (RFC 8555), with the library of Certbot: the extra [acme].

The authority fetches a token from the domain, at port 80 (HTTP-01). It is served here, as long as an order takes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import structlog

from perdure.controller.runtime.config.acme_config import AcmeConfig
from perdure.controller.runtime.security.keyring import Keyring

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

log = structlog.get_logger(__name__)

USER_AGENT = "perdure"
NOT_INSTALLED = "install Perdure with its extra [acme] on the controller's computer"
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
_MAX_PATH_CHARS = 200
_BAD_NONCE, _NONCE_TRIES = "badNonce", 4
"""An authority may forget the nonces that it has given out (RFC 8555, 6.5). The library itself tries twice."""


class OrderFailed(Exception):
    """There is no certificate; the text says why."""


@dataclass(frozen=True)
class IssuedCertificate:
    """A key and the chain of its certificate, in PEM."""

    key: str
    cert: str


def is_installed() -> bool:
    return find_spec("acme") is not None and find_spec("josepy") is not None


def order(config: AcmeConfig, keyring: Keyring, host: str, domain: str) -> IssuedCertificate:
    """A new certificate of `domain`. `host`: where the authority is answered. Raises OrderFailed. Takes a while."""
    if not is_installed():
        raise OrderFailed(NOT_INSTALLED)
    import requests
    from acme import errors
    from josepy.errors import Error as JoseError

    problems = (errors.Error, JoseError, requests.RequestException, OSError, ValueError)
    for tries in range(_NONCE_TRIES, 0, -1):
        try:
            return _order(config, keyring, host, domain)
        except problems as error:
            if getattr(error, "code", "") != _BAD_NONCE or tries == 1:
                raise OrderFailed(_text_of(error)) from error
    raise AssertionError


def _order(config: AcmeConfig, keyring: Keyring, host: str, domain: str) -> IssuedCertificate:
    from acme import challenges, client, crypto_util, messages
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from josepy.jwa import ES256
    from josepy.jwk import JWKEC

    key = JWKEC(key=_account_key(config, keyring))
    network = client.ClientNetwork(key, alg=ES256, user_agent=USER_AGENT)
    network.verify_ssl = str(config.ca_file) if config.ca_file is not None else True  # type: ignore[assignment]
    server = client.ClientV2(client.ClientV2.get_directory(config.directory, network), network)
    _enter(server, config)
    private_key = ec.generate_private_key(ec.SECP256R1())
    pem = private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    placed = server.new_order(crypto_util.make_csr(pem, domains=[domain]))
    answers: dict[str, bytes] = {}
    offered = []
    for authorization in placed.authorizations:
        if authorization.body.status == messages.STATUS_VALID:
            continue  # by an earlier order, not long ago
        offers = [one for one in authorization.body.challenges if isinstance(one.chall, challenges.HTTP01)]
        if not offers:
            raise OrderFailed("the authority does not offer HTTP-01")
        response, validation = offers[0].response_and_validation(key)
        answers[offers[0].chall.path] = validation.encode()
        offered.append((offers[0], response))
    with answering(host, config.http_port, answers):
        for challenge, response in offered:
            server.answer_challenge(challenge, response)
        finished = server.poll_and_finalize(placed)
    return IssuedCertificate(pem.decode(), finished.fullchain_pem)


def _enter(server: Any, config: AcmeConfig) -> None:
    """Register the account, or find the one that the key has."""
    from acme import errors, messages

    data: dict[str, Any] = {"email": config.email} if config.email else {}
    try:
        server.new_account(messages.NewRegistration.from_data(**data, terms_of_service_agreed=True))
    except errors.ConflictError as known:
        resource = messages.RegistrationResource(uri=known.location, body=messages.Registration())
        server.net.account = server.query_registration(resource)


def _account_key(config: AcmeConfig, keyring: Keyring) -> ec.EllipticCurvePrivateKey:
    """The key of the account, which all controllers with this keyring have, for each authority another one."""
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = int.from_bytes(keyring.derive(f"acme {config.directory}"), "big")
    return ec.derive_private_key(secret % (_ORDER - 1) + 1, ec.SECP256R1())


@contextlib.contextmanager
def answering(host: str, port: int, answers: Mapping[str, bytes]) -> Iterator[None]:
    """Serve these texts by their paths, and nothing else. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            body = answers.get(self.path)
            log.info("acme.asked", path=self.path[:_MAX_PATH_CHARS], known=body is not None)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """The standard error is not the place."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise OSError(f"port {port} for the authority (services.acme.http_port): {error.strerror or error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="acme", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def renew_at(cert: str) -> float:
    """When to renew a certificate: after two thirds of its life. Raises ValueError."""
    from cryptography import x509

    first = x509.load_pem_x509_certificates(cert.encode())[0]
    begin, end = first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()
    return begin + (end - begin) * 2 / 3


def _text_of(error: Exception) -> str:
    """Why an order has failed, for users. The library's own text of a failed validation is a dump of objects."""
    from acme import errors

    if isinstance(error, errors.ValidationError):
        problems = [
            f"{one.error.detail or one.error.typ}"
            for authorization in error.failed_authzrs
            for one in authorization.body.challenges
            if one.error is not None
        ]
        return f"the authority could not validate the domain: {'; '.join(problems)}"
    detail = getattr(error, "detail", None)
    return str(detail or error or type(error).__name__)[:500]
