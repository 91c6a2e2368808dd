"""The provider of OpenID Connect: where it is, its keys, and the exchange of a code for the claims of a user."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from perdure.controller.api.access.oidc.id_token import InvalidIdToken, UnknownSigningKey, verified_claims
from perdure.controller.runtime.config.oidc_config import OidcConfig, is_safe_url

TIMEOUT_S = 10.0
_MAX_BYTES = 2**20
_CACHED_S = 3600.0
_FAILED_S = 5.0  # how long a provider that could not be read is not asked again
_MAX_CALLS = 4  # at a time: each holds a thread that other requests need
_KEYS_AGAIN_S = 60.0  # how often a token with an unknown key may cause another look at the keys


class ProviderFailed(Exception):
    """The provider did not do its part. The text says what; it has no secret."""


class ProviderBusy(ProviderFailed):
    """It was not asked, because too many sign-ins wait for it already."""


@dataclass
class OidcProvider:
    """Safe to use from any thread; calls block. `wall_now`: the wall clock, by which tokens expire."""

    config: OidcConfig
    wall_now: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    _documents: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    _failures: dict[str, tuple[float, str]] = field(default_factory=dict)
    _calls: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_MAX_CALLS))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where the browser is sent to. Raises ProviderFailed."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self.config.scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        url = self._endpoint("authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    def claims(self, code: str, redirect_uri: str, nonce: str, verifier: str) -> dict[str, Any]:
        """Whom a code stands for. Raises ProviderFailed."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self.config.client_id,
            "code_verifier": verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if (secret := self._secret()) is not None:
            pair = f"{quote(self.config.client_id, safe='')}:{quote(secret, safe='')}"  # RFC 6749, section 2.3.1
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        answer = self._call(self._endpoint("token_endpoint"), headers, urlencode(form).encode())
        try:
            return self._verify(str(answer.get("id_token")), nonce, max_age_s=_CACHED_S)
        except UnknownSigningKey:
            pass  # the provider may have changed its keys
        except InvalidIdToken as error:
            raise ProviderFailed(f"its ID token does not count: {error}") from error
        try:
            return self._verify(str(answer.get("id_token")), nonce, max_age_s=_KEYS_AGAIN_S)
        except InvalidIdToken as error:
            raise ProviderFailed(f"its ID token does not count: {error}") from error

    def _verify(self, token: str, nonce: str, max_age_s: float) -> dict[str, Any]:
        keys = self._document(self._endpoint("jwks_uri"), max_age_s).get("keys")
        return verified_claims(
            token,
            [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else [],
            issuer=str(self._metadata().get("issuer")),
            audience=self.config.client_id,
            nonce=nonce,
            now=self.wall_now(),
        )

    def _metadata(self) -> Mapping[str, Any]:
        """The provider's description of itself, which must be of the issuer that is configured."""
        metadata = self._document(f"{self.config.issuer}/.well-known/openid-configuration", _CACHED_S)
        if str(metadata.get("issuer")).rstrip("/") != self.config.issuer:
            raise ProviderFailed("it describes another issuer than oidc.issuer")
        return metadata

    def _endpoint(self, name: str) -> str:
        url = self._metadata().get(name)
        if not isinstance(url, str) or not is_safe_url(url):
            raise ProviderFailed(f"its {name} is no URL with https://")
        return url

    def _document(self, url: str, max_age_s: float) -> dict[str, Any]:
        with self._lock:
            known, failure = self._documents.get(url), self._failures.get(url)
        if known is not None and self.monotonic() - known[0] < max_age_s:
            return known[1]
        if failure is not None and self.monotonic() - failure[0] < _FAILED_S:
            raise ProviderFailed(failure[1])
        try:
            document = self._call(url, {})
        except ProviderBusy:
            raise
        except ProviderFailed as error:
            with self._lock:
                self._failures[url] = self.monotonic(), str(error)
            raise
        with self._lock:
            self._documents[url] = self.monotonic(), document
        return document

    def _call(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> dict[str, Any]:
        """`_call`, unless too many wait for the provider already. Raises ProviderFailed."""
        if not self._calls.acquire(blocking=False):
            raise ProviderBusy("too many sign-ins wait for it")
        try:
            return _call(url, headers, body)
        finally:
            self._calls.release()

    def _secret(self) -> str | None:
        if self.config.client_secret_file is None:
            return None
        try:
            return self.config.client_secret_file.read_text().strip()
        except OSError as error:
            raise ProviderFailed(f"oidc.client_secret_file cannot be read: {error.strerror}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is sent has a secret."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _call(url: str, headers: Mapping[str, str], body: bytes | None = None) -> dict[str, Any]:
    """The JSON object that the provider answers with. Raises ProviderFailed."""
    request = urllib.request.Request(url, body, {"Accept": "application/json", **headers})  # noqa: S310 - is_safe_url
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as response:
            data = response.read(_MAX_BYTES + 1)
        value = json.loads(data) if len(data) <= _MAX_BYTES else None
    except urllib.error.HTTPError as error:
        raise ProviderFailed(f"{url.partition('?')[0]} answered {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ProviderFailed(f"{url.partition('?')[0]} cannot be read: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ProviderFailed(f"{url.partition('?')[0]} answered with something else than an object")
    return value
