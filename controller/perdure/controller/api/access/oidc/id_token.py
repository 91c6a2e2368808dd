"""Checks an ID token: its signature, and for whom, by whom and until when it is (OpenID Connect Core, section 3.1.3.7).

Only signatures by a key of the provider count (RS256, ES256): `none` and signatures with a shared secret do not.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any

LEEWAY_S = 60.0
"""How much the provider's clock may differ."""
_MAX_CHARS = 64 * 1024
_MIN_RSA_BITS = 2048
_P256_BYTES = 32


class InvalidIdToken(Exception):
    """The token proves nothing. The text says why, without the token."""


class UnknownSigningKey(InvalidIdToken):
    """It is signed by a key that is not among those given: the provider may have a new one."""


def verified_claims(
    token: str, keys: Iterable[Mapping[str, Any]], *, issuer: str, audience: str, nonce: str, now: float
) -> dict[str, Any]:
    """The claims of a token that this sign-in has asked for. `keys`: the provider's, as JWKs. `now`: the wall clock.
    Raises InvalidIdToken."""
    parts = token.split(".") if len(token) <= _MAX_CHARS else []
    if len(parts) != 3:
        raise InvalidIdToken("it is no signed token")
    head, claims = _json(parts[0]), _json(parts[1])
    _verify(head, f"{parts[0]}.{parts[1]}".encode(), _bytes(parts[2]), keys)
    if claims.get("iss") != issuer:
        raise InvalidIdToken("it is of another issuer")
    audiences = claims.get("aud")
    given = audiences if isinstance(audiences, list) else [audiences]
    if audience not in given or (len(given) > 1 and claims.get("azp") != audience):
        raise InvalidIdToken("it is for another client")
    if not _is_time(claims.get("exp")) or now >= claims["exp"] + LEEWAY_S:
        raise InvalidIdToken("it has expired")
    if not _is_time(claims.get("iat")) or claims["iat"] > now + LEEWAY_S:
        raise InvalidIdToken("it is from the future")
    if claims.get("nonce") != nonce:
        raise InvalidIdToken("it belongs to another sign-in")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise InvalidIdToken("it names nobody")
    return claims


def _verify(head: Mapping[str, Any], signed: bytes, signature: bytes, keys: Iterable[Mapping[str, Any]]) -> None:
    from cryptography.exceptions import InvalidSignature  # here and below: most controllers sign nobody in so

    algorithm, key_id = head.get("alg"), head.get("kid")
    if algorithm not in ("RS256", "ES256") or "crit" in head:
        raise InvalidIdToken("its signature is of a kind that does not count")
    kind = "RSA" if algorithm == "RS256" else "EC"
    fitting = [
        key
        for key in keys
        if key.get("kty") == kind and key.get("use", "sig") == "sig" and (key_id is None or key.get("kid") == key_id)
    ]
    if not fitting:
        raise UnknownSigningKey("the provider has no such key")
    for key in fitting:
        try:
            (_verify_rsa if kind == "RSA" else _verify_ec)(key, signed, signature)
            return
        except (InvalidSignature, ValueError, KeyError):
            continue
    raise InvalidIdToken("its signature is wrong")


def _verify_rsa(key: Mapping[str, Any], signed: bytes, signature: bytes) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    public = rsa.RSAPublicNumbers(_int(key["e"]), _int(key["n"])).public_key()
    if public.key_size < _MIN_RSA_BITS:
        raise ValueError("the key is too short")
    public.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())


def _verify_ec(key: Mapping[str, Any], signed: bytes, signature: bytes) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    if key.get("crv") != "P-256" or len(signature) != 2 * _P256_BYTES:
        raise ValueError("not a signature with P-256")
    public = ec.EllipticCurvePublicNumbers(_int(key["x"]), _int(key["y"]), ec.SECP256R1()).public_key()
    r, s = (int.from_bytes(half) for half in (signature[:_P256_BYTES], signature[_P256_BYTES:]))
    public.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA256()))


def _json(part: str) -> dict[str, Any]:
    try:
        value = json.loads(_bytes(part))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidIdToken("it is no signed token")
    return value


def _bytes(part: object) -> bytes:
    if not isinstance(part, str):
        raise InvalidIdToken("it is no signed token")
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidIdToken("it is no signed token") from None


def _int(part: object) -> int:
    return int.from_bytes(_bytes(part))


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
