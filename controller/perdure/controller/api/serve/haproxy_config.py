"""Renders the configuration of the HAProxy of one service (HAProxy 2.6 and newer).

The order of the rules matters: the caller is checked before anything else is done with the request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from perdure.controller.maintenance.serve.proxy_state import ProxySettings

FRONTEND, BACKEND, HOLD = "endpoint", "replicas", "hold"
CERTIFICATE = "endpoint.pem"
HARD_STOP_S = 3600  # how long a proxy that is replaced may answer its last requests
HOLD_TIMEOUT_S = 3600  # of a held request with its answer; `upstreams` ends the wait itself
_REJECTION = ("this service needs its token: Authorization: Bearer TOKEN", "authentication_error")
# Clients of models expect errors as JSON, also those of the proxy itself.
_ERRORS = {
    502: ("the replica ended the connection before its answer", "bad_gateway"),
    503: ("no replica can be reached", "service_unavailable"),
    504: ("the replica did not answer in time", "timeout"),
}
# Time, client, method, path (without the query, which may hold secrets), status, bytes, milliseconds in all and until
# the first byte of the answer, server, how it ended. No header is ever logged. `proxy_log` reads it.
LOG_FIELDS = ("%t", "%ci", "%HM", "%HPO", "%ST", "%B", "%Ta", "%Tr", "%s", "%tsc")

_TEMPLATE = """\
global
    log stdout format raw local0 info
    stats socket {admin} mode 600 level admin
    stats timeout 10s
    maxconn {maxconn}
    nbthread 1
    no strict-limits
    hard-stop-after {hard_stop_s}s
    ssl-default-bind-options ssl-min-ver TLSv1.2

defaults
    mode http
    log global
    log-format "{log_format}"
    option dontlognull
    option http-no-delay
    option redispatch 1
    retries 2
    retry-on conn-failure empty-response
    http-reuse safe
    timeout connect 10s
    timeout http-request 30s
    timeout http-keep-alive 60s
    timeout client {client_ms}ms
    timeout server {server_ms}ms
    timeout tunnel 1h
{errors}

frontend {frontend}
    bind fd@{listener}{tls}
{authorization}
    acl is_repeatable method GET HEAD OPTIONS PUT DELETE TRACE
    http-request disable-l7-retry unless is_repeatable
    use_backend {hold} unless {{ nbsrv({backend}) gt 0 }}
    default_backend {backend}

backend {backend}
    balance {balance}
{servers}

backend {hold}
    retries 0
    timeout server {hold_s}s
    server {hold} unix@{folder}/{hold}.sock
"""
_AUTHORIZATION = """\
    http-request set-var(txn.caller) 'req.hdr(authorization),regsub("^[Bb]earer +",""),sha2(256),hex'
    http-request return status 401 content-type application/json hdr WWW-Authenticate Bearer string "{body}" \
unless {{ var(txn.caller) -m str {digest} }}
    http-request del-header authorization"""


def render(settings: ProxySettings, folder: Path, admin: Path, listener: int, weights: Mapping[int, int]) -> str:
    """The configuration. `folder`: of the sockets of its servers. `admin`: the socket of its runtime interface.
    `listener`: the inherited descriptor of the endpoint.

    `weights`: those of the servers that are in rotation, by slot; the others are in maintenance.
    """
    stream_ms = round(settings.stream_timeout_s * 1000)
    return _TEMPLATE.format(
        folder=folder,
        admin=admin,
        hard_stop_s=HARD_STOP_S,
        maxconn=4096,
        log_format=" ".join(LOG_FIELDS),
        client_ms=stream_ms + 10_000,
        server_ms=stream_ms,
        errors="\n".join(_error(status, *texts) for status, texts in _ERRORS.items()),
        listener=listener,
        tls=f" ssl crt {folder}/{CERTIFICATE} alpn h2,http/1.1" if settings.tls_cert else "",
        authorization=_authorization(settings.token),
        balance="roundrobin" if settings.round_robin else "leastconn",
        servers="\n".join(_server(folder, slot, weights) for slot in range(settings.max_targets)),
        frontend=FRONTEND,
        backend=BACKEND,
        hold=HOLD,
        hold_s=HOLD_TIMEOUT_S,
    )


def server_name(slot: int) -> str:
    """The name of a server slot."""
    return f"s{slot}"


def socket_name(slot: int) -> str:
    """The name of the unix socket behind a server slot."""
    return f"{server_name(slot)}.sock"


def _server(folder: Path, slot: int, weights: Mapping[int, int]) -> str:
    state = "" if slot in weights else " disabled"
    return f"    server {server_name(slot)} unix@{folder}/{socket_name(slot)} weight {weights.get(slot, 100)}{state}"


def _authorization(token: str) -> str:
    """Comparing digests takes no secret: how long it takes tells nothing about the token."""
    if not token:
        return "    # everybody may call: --no-auth"
    digest = hashlib.sha256(token.encode()).hexdigest().upper()
    return _AUTHORIZATION.format(body=_json(*_REJECTION), digest=digest)


def _error(status: int, message: str, kind: str) -> str:
    return f'    http-error status {status} content-type application/json string "{_json(message, kind)}"'


def _json(message: str, kind: str) -> str:
    """The body of an error, escaped for double quotes."""
    return json.dumps({"error": {"message": message, "type": kind}}).replace('"', '\\"')
