"""A service account for the tests: its key file, and checks of tokens signed with it."""

from __future__ import annotations

from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt


def key_file(project: str, token_uri: str) -> dict[str, str]:
    """The content of the account's key file, in Google's format."""
    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "key-1",
        "private_key": _private_key(),
        "client_email": email(project),
        "token_uri": token_uri,
        "universe_domain": "perdure.test",  # with the default, Google's library would call Google
    }


def email(project: str) -> str:
    return f"perdure@{project}.iam.gserviceaccount.com"


def is_signed(token: str, project: str) -> bool:
    """Whether a token is signed with the key of the project's account."""
    try:
        claims: dict[str, Any] = jwt.decode(token, certs=_public_key(), clock_skew_in_seconds=60)
        return bool(claims["iss"] == email(project))
    except (ValueError, KeyError):
        return False


@cache
def _key() -> rsa.RSAPrivateKey:  # a short key, which is quick to check: it protects nothing
    return rsa.generate_private_key(public_exponent=65537, key_size=1024)


def _private_key() -> str:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return _key().private_bytes(serialization.Encoding.PEM, form, encryption).decode()


def _public_key() -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return _key().public_key().public_bytes(serialization.Encoding.PEM, form)
