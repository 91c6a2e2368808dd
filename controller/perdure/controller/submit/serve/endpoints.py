"""What protects the endpoint of a service: its token, and its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.serve import certificate
from perdure.sdk.serve.certificate import InvalidCertificate


@dataclass(frozen=True)
class Endpoint:
    """What protects the endpoint of a service. `token`: "" lets everybody in. Key and certificate: PEM.

    `acme`: the domain of a certificate that was got by ACME; "" of any other.
    """

    token: str = ""
    tls_key: str = ""
    tls_cert: str = ""
    acme: str = ""


def acme_domain(section: Mapping[str, Any]) -> str:
    """The domain of which a service wants a certificate by ACME; "" if it wants none."""
    return str((section.get("tls") or {}).get("acme") or "")


def with_certificate(
    before: Endpoint, section: Mapping[str, Any], sent: Mapping[str, str], why_no_acme: str | None, now: float
) -> Endpoint:
    """The endpoint with the certificate that `service` wants, or with none. Raises RequestRejected.

    `sent`: the texts of the files of `service.tls`, as `key` and `cert`. `why_no_acme`: why this controller cannot get
    one, or None. Of a domain that is new, the endpoint has one that nobody trusts, until the authority has issued one.
    """
    if domain := acme_domain(section):
        if before.acme == domain:
            return before
        if why_no_acme is not None:
            message = "this controller gets no certificates by ACME"
            raise RequestRejected(message, where="service.tls.acme", fix=why_no_acme, status=409)
        from perdure.controller.runtime.security.certificates import self_signed  # few services need it

        own_key, own_cert = self_signed((domain,), now)
        return Endpoint(before.token, own_key.decode(), own_cert.decode())
    return Endpoint(before.token, **_own_certificate(section, sent))


def _own_certificate(section: Mapping[str, Any], sent: Mapping[str, str]) -> dict[str, str]:
    """Raises RequestRejected."""
    if "tls" not in section:
        return {}
    key, cert = sent.get("key", ""), sent.get("cert", "")
    if not (key and cert):
        raise RequestRejected("the files of service.tls were not sent", where="service.tls", fix="use `perdure`")
    try:
        certificate.check(key, cert)
    except InvalidCertificate as error:
        raise RequestRejected(error.message, where=f"service.tls.{error.field}", fix=error.fix) from error
    return {"tls_key": key, "tls_cert": cert}


def scheme_warning(earlier: Endpoint, now: Endpoint, *, has_default: bool) -> tuple[str, ...]:
    """What callers must know if an update adds or removes the certificate. `has_default`: the controller has one."""
    if has_default or bool(earlier.tls_cert) == bool(now.tls_cert):
        return ()
    scheme = "https" if now.tls_cert else "http"
    return (f"the endpoint changes to {scheme}: its callers need the new URL",)
