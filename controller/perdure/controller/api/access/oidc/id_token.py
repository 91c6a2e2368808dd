"""Checks an ID token: its signature, and for whom, by whom and until when it is (OpenID Connect Core, section 3.1.3.7).

Only signatures by a key of the provider count (RS256, ES256): `none` and signatures with a shared secret do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jwt

LEEWAY_S = 60.0
"""How much the provider's clock may differ."""
_MAX_CHARS = 64 * 1024
_MAX_TIME = 1e11
"""Seconds since 1970: some 3000 years."""
_MIN_RSA_BITS = 2048
_KEY_TYPES = {"RS256": "RSA", "ES256": "EC"}
_ONLY_THE_SIGNATURE = {f"verify_{name}": False for name in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}


class InvalidIdToken(Exception):
    """The token proves nothing. The text says why, without the token."""


class UnknownSigningKey(InvalidIdToken):
    """It is signed by a key that is not among those given: the provider may have a new one."""


def verified_claims(
    token: str, keys: Iterable[Mapping[str, Any]], *, issuer: str, audience: str, nonce: str, now: float
) -> dict[str, Any]:
    """The claims of a token that this sign-in has asked for. `keys`: the provider's, as JWKs. `now`: the wall clock.
    Raises InvalidIdToken."""
    claims = _signed_claims(token, keys)
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


def _signed_claims(token: str, keys: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a key of the provider has signed. Who signed it for whom, and when, is the caller's to check."""
    import jwt  # most controllers sign nobody in so

    try:
        head = jwt.get_unverified_header(token if len(token) <= _MAX_CHARS else "")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise InvalidIdToken("it is no signed token") from None
    algorithm, key_id = head.get("alg"), head.get("kid")
    if not isinstance(algorithm, str) or algorithm not in _KEY_TYPES or "crit" in head:
        raise InvalidIdToken("its signature is of a kind that does not count")
    fitting = [
        key
        for key in keys
        if key.get("kty") == _KEY_TYPES[algorithm]
        and key.get("use", "sig") == "sig"
        and (key_id is None or key.get("kid") == key_id)
    ]
    if not fitting:
        raise UnknownSigningKey("the provider has no such key")
    for key in fitting:
        try:
            claims = jwt.decode(token, _public_key(key, algorithm), [algorithm], _ONLY_THE_SIGNATURE)  # type: ignore[arg-type]
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError, jwt.PyJWKError):
            continue
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise InvalidIdToken("it is no signed token") from None
        return dict(claims)
    raise InvalidIdToken("its signature is wrong")


def _public_key(key: Mapping[str, Any], algorithm: str) -> jwt.PyJWK:
    """Raises jwt.InvalidKeyError or jwt.PyJWKError."""
    import jwt

    public = jwt.PyJWK(dict(key), algorithm)
    if public.key.key_size < _MIN_RSA_BITS and algorithm == "RS256":
        raise jwt.InvalidKeyError("the key is too short")
    return public


def _is_time(value: object) -> bool:
    """Whether it is a point in time: JSON can be read as NaN, and as numbers that no `float` can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_TIME
