"""Keeps secrets inside other fields (`workdir: {url: https://${TOKEN}@…}`) out of the plain-text part of the database.

The client substitutes variables. The stored task has `${NAME}` instead of each secret's value again, and a node's spec
gets the values back. The client leaves no other `${NAME}` of a secret in a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

GIT_CREDENTIALS = "workdir.url"
"""Names the user and password of a git URL among a task's secrets. No variable of a task can have this name."""

_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/?#]*)@(?P<rest>.*)", re.DOTALL)


def mask_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    """`value` with every secret in its strings, keys included, replaced by `${NAME}`."""
    return secret_mask(secrets)(value)


def secret_mask(secrets: Mapping[str, str]) -> Callable[[Any], Any]:
    """`mask_secrets` of these secrets, for many values."""
    names = {secret: name for name, secret in secrets.items() if secret}
    if not names:
        return lambda value: value
    # Longest first, since one secret may be part of another.
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return lambda value: _mapped(value, lambda text: pattern.sub(lambda match: f"${{{names[match[0]]}}}", text))


def resolve_secrets(value: Any, secrets: Mapping[str, str]) -> Any:
    """The inverse of `mask_secrets`."""
    if not secrets:
        return value
    pattern = re.compile(r"\$\{(" + "|".join(map(re.escape, secrets)) + r")\}")
    return _mapped(value, lambda text: pattern.sub(lambda match: secrets[match[1]], text))


def without_credentials(url: str, secrets: Mapping[str, str]) -> tuple[str, str | None]:
    """A masked URL without the credentials that are written in it, and these credentials; None if there are none.

    `${GIT_CREDENTIALS}` stands for them in the URL. A user that needs no secret, as in `ssh://git@host`, and a
    password that is a secret already, stay where they are.
    """
    parts = _USER_INFO.fullmatch(url)
    if parts is None:
        return url, None
    user, colon, password = parts["user"].partition(":")
    # A token is often given as the user: https://token@host.
    hidden = password if colon else user if parts["scheme"].lower().startswith("http") else ""
    if not re.sub(r"\$\{\w+\}", "", hidden):
        return url, None
    return f"{parts['scheme']}${{{GIT_CREDENTIALS}}}@{parts['rest']}", str(resolve_secrets(parts["user"], secrets))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [_mapped(item, change) for item in value]
        case dict():
            return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
        case _:
            return value
