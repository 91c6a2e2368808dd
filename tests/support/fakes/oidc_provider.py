"""A provider of OpenID Connect on this computer: it signs in whoever comes, with the claims that the test says."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: rsa.RSAPrivateKey, head: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """A JWT, signed with RS256."""
    text = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{encoded(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(key: rsa.RSAPrivateKey, key_id: str) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    n, e = (encoded(value.to_bytes((value.bit_length() + 7) // 8)) for value in (numbers.n, numbers.e))
    return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": key_id, "n": n, "e": e}


@dataclass
class FakeOidcProvider:
    """`claims`: of the user who signs in; `change`: applied to the claims of the next ID token. A context manager."""

    client_id: str = "perdure"
    secret: str | None = None
    now: Callable[[], float] = lambda: 0.0
    claims: dict[str, Any] = field(default_factory=dict)
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
    key: rsa.RSAPrivateKey = field(default_factory=new_key)
    key_id: str = "one"
    problems: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                if parts.path == "/authorize":
                    self.send_response(303)
                    self.send_header("Location", provider.authorize(query))
                    self.end_headers()
                    return
                pages = {"/.well-known/openid-configuration": provider.metadata, "/keys": provider.keys}
                self._answer(200, pages[parts.path]())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                answer = provider.exchange(form, self.headers.get("authorization", ""))
                self._answer(200 if "id_token" in answer else 400, answer)

            def _answer(self, status: int, value: object) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def metadata(self) -> dict[str, str]:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return {"issuer": self.issuer, **{name: f"{self.issuer}/{path}" for name, path in names.items()}}

    def keys(self) -> dict[str, Any]:
        return {"keys": [jwk(self.key, self.key_id)]}

    def authorize(self, query: dict[str, str]) -> str:
        """The user agrees: the address that the browser is sent back to."""
        asked = (query["response_type"], query["client_id"], query["code_challenge_method"])
        if asked != ("code", self.client_id, "S256") or "openid" not in query["scope"].split():
            self.problems.append(f"wrong request: {query}")
        code = secrets.token_urlsafe(8)
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        asked = self._codes.pop(form["code"], None)
        challenge = encoded(hashlib.sha256(form["code_verifier"].encode()).digest())
        pair = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        is_client = self.secret is None or authorization == f"Basic {pair}"
        is_same = asked is not None and asked["redirect_uri"] == form["redirect_uri"]
        if asked is None or not is_same or not is_client or asked["code_challenge"] != challenge:
            self.problems.append(f"wrong exchange: {form}")
            return {"error": "invalid_grant"}
        now = int(self.now())
        claims = {"iss": self.issuer, "aud": self.client_id, "sub": "7", "iat": now, "exp": now + 300}
        claims = self.change({**claims, "nonce": asked["nonce"], **self.claims})
        return {"id_token": signed(self.key, {"alg": "RS256", "kid": self.key_id}, claims), "access_token": "x"}
