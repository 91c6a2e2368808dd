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
    """What protects the endpoint of a service. `token`: "" lets everybody in. Key and certificate: PEM."""

    token: str = ""
    tls_key: str = ""
    tls_cert: str = ""


def own_certificate(section: Mapping[str, Any], sent: Mapping[str, str]) -> dict[str, str]:
    """`tls_key` and `tls_cert` of an endpoint, "" if `service` names none. Raises RequestRejected.

    `sent`: the texts of the files of `service.tls`, as `key` and `cert`.
    """
    if "tls" not in section:
        return {"tls_key": "", "tls_cert": ""}
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
