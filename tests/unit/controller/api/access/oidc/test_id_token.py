"""What an ID token has to prove."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from perdure.controller.api.access.oidc.id_token import InvalidIdToken, UnknownSigningKey, verified_claims
from support.fakes.oidc_provider import encoded, jwk, new_key, signed

NOW = 1_800_000_000.0
KEY, OTHER = new_key(), new_key()
CLAIMS = {"iss": "https://i", "aud": "perdure", "sub": "7", "iat": NOW, "exp": NOW + 300, "nonce": "n"}
HEAD = {"alg": "RS256", "kid": "one"}


def check(token: str, *keys: dict[str, str]) -> dict[str, Any]:
    wanted = {"issuer": "https://i", "audience": "perdure", "nonce": "n", "now": NOW}
    return verified_claims(token, keys or (jwk(KEY, "one"),), **wanted)  # type: ignore[arg-type]


def test_token__is_accepted() -> None:
    assert check(signed(KEY, HEAD, CLAIMS))["sub"] == "7"
    assert check(signed(KEY, {"alg": "RS256"}, CLAIMS), jwk(OTHER, "two"), jwk(KEY, "one"))["sub"] == "7"
    assert check(signed(KEY, HEAD, {**CLAIMS, "aud": ["perdure", "other"], "azp": "perdure"}))["sub"] == "7"


def test_token__of_an_elliptic_curve_is_accepted() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    numbers = key.public_key().public_numbers()
    x, y = (encoded(value.to_bytes(32)) for value in (numbers.x, numbers.y))
    public = {"kty": "EC", "crv": "P-256", "kid": "e", "x": x, "y": y}
    text = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "ES256", "kid": "e"}, CLAIMS))
    r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    token = f"{text}.{encoded(r.to_bytes(32) + s.to_bytes(32))}"
    assert check(token, public)["sub"] == "7"
    with pytest.raises(InvalidIdToken, match="signature is wrong"):
        check(f"{text}.{encoded(s.to_bytes(32) + r.to_bytes(32))}", public)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"iss": "https://evil"}, "another issuer"),
        ({"aud": "other"}, "another client"),
        ({"aud": ["perdure", "other"]}, "another client"),
        ({"exp": NOW - 61}, "expired"),
        ({"exp": True}, "expired"),
        ({"exp": float("nan")}, "expired"),
        ({"exp": float("inf")}, "expired"),
        ({"exp": 10**400}, "expired"),
        ({"iat": NOW + 61}, "future"),
        ({"iat": float("nan")}, "future"),
        ({"iat": float("-inf")}, "future"),
        ({"iat": -(10**400)}, "future"),
        ({"nonce": "m"}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"sub": ""}, "nobody"),
    ],
)
def test_claims__that_are_wrong(change: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidIdToken, match=why):
        check(signed(KEY, HEAD, {**CLAIMS, **change}))


def forged(head: dict[str, Any], signature: str = "") -> str:
    return ".".join(encoded(json.dumps(part).encode()) for part in (head, CLAIMS)) + "." + signature


def test_signatures__that_do_not_count() -> None:
    with pytest.raises(InvalidIdToken, match="kind"):
        check(forged({"alg": "none"}))
    for algorithm in (["ES256"], {}, None, 1):
        with pytest.raises(InvalidIdToken, match="kind"):
            check(forged({"alg": algorithm, "kid": "one"}))
    # The public key, as the secret of an HMAC: a mistake that libraries have made.
    text = forged({"alg": "HS256", "kid": "one"})[:-1]
    mac = hmac.digest(jwk(KEY, "one")["n"].encode(), text.encode(), hashlib.sha256)
    with pytest.raises(InvalidIdToken, match="kind"):
        check(f"{text}.{encoded(mac)}")
    with pytest.raises(InvalidIdToken, match="signature is wrong"):
        check(signed(OTHER, HEAD, CLAIMS))
    with pytest.raises(UnknownSigningKey):
        check(signed(OTHER, {"alg": "RS256", "kid": "two"}, CLAIMS))
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.raises(InvalidIdToken, match="signature is wrong"):
        check(signed(short, HEAD, CLAIMS), jwk(short, "one"))
    whole = signed(KEY, HEAD, CLAIMS)
    with pytest.raises(InvalidIdToken):
        check(whole[:-4])


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "e30.e30.e30", "é.é.é", "." * 100_000, "bnVsbA.bnVsbA.x"])
def test_rubbish__is_no_token(token: str) -> None:
    with pytest.raises(InvalidIdToken):
        check(token)
