"""Finds the controller, and starts the embedded one on first use.

The first of these is used:

1. The controller that `PERDURE_ENDPOINT` names, with `PERDURE_TOKEN` (or `PERDURE_TOKEN_FILE`) and, to pin one
   certificate, `PERDURE_FINGERPRINT`. Without a token in the environment, that of `perdure login` is used (`logins`).
   It gets no other: the home's is never sent to it.
2. The controller that `perdure controller up` created (`hosted_controller`).
3. The embedded controller in `PERDURE_HOME` (default `~/.perdure`), whose address is in `controller.json` and whose
   token is in `token`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from perdure.sdk.connection.embedded import (
    STDERR_LOG,
    is_controller,
    load_record,
    recorded_pid,
    running,
    stderr_tail,
)
from perdure.sdk.connection.endpoint import LOGINS_FILE, Endpoint, NoController, home_dir

__all__ = [
    "STDERR_LOG",
    "ensure",
    "find",
    "is_controller",
    "recorded_pid",
    "restart_if_embedded",
    "running",
    "stderr_tail",
]


def find(environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """The controller that the environment names, that `controller up` created, or that runs here. Never starts one."""
    return _named(environ) or _hosted(home_dir(environ)) or running(home_dir(environ))


def ensure(environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The controller; starts the embedded one if none runs. Raises `NoController`."""
    if endpoint := find(environ):
        return endpoint
    from perdure.sdk.connection.embedded_start import start

    return start(home_dir(environ))


def restart_if_embedded(home: Path) -> Endpoint | None:
    """The embedded controller, restarted if it crashed. None if it was stopped on purpose, or hangs.

    A controller that stops on request removes `controller.json`; one that was killed leaves it. Another command that is
    starting the controller at this moment has removed it too: its outcome is awaited. Raises `NoController`.
    """
    if endpoint := running(home):
        return endpoint
    from perdure.sdk.connection.embedded_start import await_start, start

    if not load_record(home).get("pid"):
        try:
            return await_start(home)
        except OSError:  # this user may not open the lock
            return running(home)
    return None if recorded_pid(home) else start(home)


def unauthenticated(environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The controller that `PERDURE_ENDPOINT` names, without a token. Raises NoController."""
    url = _checked_url(environ)
    if url is None:
        raise NoController("say which controller", fix="give its address, or set PERDURE_ENDPOINT")
    return Endpoint(url, "", fingerprint=_pinned(url, environ))


def _named(environ: Mapping[str, str]) -> Endpoint | None:
    url = _checked_url(environ)
    if url is None:
        return None
    fingerprint = _pinned(url, environ)
    return Endpoint(url, _given_token(url, environ), fingerprint=fingerprint)


def _checked_url(environ: Mapping[str, str]) -> str | None:
    url = environ.get("PERDURE_ENDPOINT", "").rstrip("/")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise NoController(f"{url!r} is not a URL", where="PERDURE_ENDPOINT", fix="start it with http:// or https://")
    _require_address(url)
    return url


def _require_address(url: str) -> None:
    """Raise NoController unless the URL has a host, a valid port if any, and no user or password."""
    where, fix = "PERDURE_ENDPOINT", "write it like https://host:8443"
    if "@" in url.partition("://")[2].partition("/")[0]:
        fix = "leave them out, and set PERDURE_TOKEN"
        raise NoController("the URL holds a user or a password", where=where, fix=fix)
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise NoController(f"{url!r} is not a URL: {error}", where=where, fix=fix) from error
    if not is_complete:
        raise NoController(f"{url!r} names no host, or port 0", where=where, fix=fix)


def _given_token(url: str, environ: Mapping[str, str]) -> str:
    """The token that the environment gives for `url`. Never that of the home, which belongs to another controller."""
    where, token = "PERDURE_TOKEN", environ.get("PERDURE_TOKEN", "").strip()
    file = environ.get("PERDURE_TOKEN_FILE", "")
    if not token and not file and (home_dir(environ) / LOGINS_FILE).exists():
        from perdure.sdk.files.logins import token_for

        token = token_for(home_dir(environ), url) or ""
    if not token and not file:
        raise NoController(
            f"there is no token for {url}; the one in {home_dir(environ)} is for the controller of that folder only",
            where="PERDURE_ENDPOINT",
            fix="set PERDURE_TOKEN, or PERDURE_TOKEN_FILE to a file that holds it; or run: perdure login",
        )
    if not token:
        where = "PERDURE_TOKEN_FILE"
        try:
            token = Path(file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise NoController(
                f"there is no token for {url}: {file}: {reason}",
                where=where,
                fix="set PERDURE_TOKEN, or PERDURE_TOKEN_FILE to a file that holds it",
            ) from error
    if not re.fullmatch("[!-~]+", token):
        raise NoController(
            f"the token for {url} is empty, or has characters that no token has", where=where, fix="copy it again"
        )
    return token


def _hosted(home: Path) -> Endpoint | None:
    if not (home / "hosted.json").exists():
        return None  # most homes have none, and need not load the module that reads it
    from perdure.sdk.connection.hosted_controller import serving_endpoint

    return serving_endpoint(home)


def _pinned(url: str, environ: Mapping[str, str]) -> str | None:
    """The certificate that the environment pins, if any. Raises NoController if the token would be sent unencrypted."""
    from perdure.sdk.connection.transport import parse_fingerprint, require_private

    given = environ.get("PERDURE_FINGERPRINT", "").strip()
    if given and not url.startswith("https://"):
        raise NoController(
            f"{url} does not use TLS", where="PERDURE_FINGERPRINT", fix="start PERDURE_ENDPOINT with https://"
        )
    require_private(url, environ)
    try:
        return parse_fingerprint(given) if given else None
    except ValueError as error:
        raise NoController(str(error), where="PERDURE_FINGERPRINT", fix="give 64 hexadecimal digits") from error
