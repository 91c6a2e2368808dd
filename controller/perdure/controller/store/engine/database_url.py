"""Database URLs for texts that people and logs read: without any password, however it is given."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

# Whatever else a URL's query may contain, these values are no secrets.
_SHOWN_OPTIONS = {"host", "hostaddr", "port", "user", "dbname", "sslmode", "application_name", "connect_timeout"}
_HIDDEN = "***"


def redacted(url: str) -> str:
    """`url` without its passwords; for SQLite, the name of the file."""
    if url.startswith("sqlite:///"):
        return url.removeprefix("sqlite:///")
    scheme, mark, rest = url.partition("://")
    if not mark:  # no URL: perhaps the key=value form, which has passwords as well
        return url if url.isalnum() else _HIDDEN
    address, mark, query = rest.partition("?")
    user, _, host = address.rpartition("@")
    name, colon, _ = user.partition(":")
    user_part = f"{name}:{_HIDDEN}@" if colon else f"{name}@" if user else ""
    options = [_shown_option(option) for option in query.split("&")]
    return f"{scheme}://{user_part}{host}{mark}{'&'.join(options)}"


def passwords(url: str) -> set[str]:
    """Every secret value in `url`, as it is written there and as it is meant."""
    if url.startswith("sqlite"):
        return set()
    address, _, query = url.partition("://")[2].partition("?")
    written = {address.rpartition("@")[0].partition(":")[2]}
    written |= {option.partition("=")[2] for option in query.split("&") if _shown_option(option) != option}
    meant = {unquote(secret) for secret in written} | {
        value for name, value in parse_qsl(query) if name.lower() not in _SHOWN_OPTIONS
    }
    return (written | meant) - {""}


def without_passwords(text: str, url: str) -> str:
    """`text`, for example of a driver's error, without the passwords of `url` that it quotes."""
    for secret in sorted(passwords(url), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def has_password(url: str) -> bool:
    """Whether `url` itself has a password, which would otherwise come from ~/.pgpass or the environment."""
    address, _, query = url.partition("://")[2].partition("?")
    names = {option.partition("=")[0].lower() for option in query.split("&")}
    return ":" in address.rpartition("@")[0] or not names.isdisjoint(("password", "sslpassword"))


def _shown_option(option: str) -> str:
    name, mark, _ = option.partition("=")
    return option if name.lower() in _SHOWN_OPTIONS or not mark else f"{name}={_HIDDEN}"
