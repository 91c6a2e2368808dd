"""What of a database URL people and logs may read."""

from __future__ import annotations

import pytest

from perdure.controller.store.engine.database_url import has_password, passwords, redacted, without_passwords


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql://me:sesame@db/x", {"sesame"}),
        ("postgresql://me:p%40ss@db/x", {"p%40ss", "p@ss"}),
        ("postgresql://me:a:b@c@db/x", {"a:b@c"}),
        ("postgresql://db/x?user=me&password=open%20sesame", {"open%20sesame", "open sesame"}),
        ("postgresql://db/x?Password=a+b&sslpassword=c", {"a+b", "a b", "c"}),
        ("postgresql://me:one@db/x?password=two", {"one", "two"}),
    ],
)
def test_passwords__are_found_and_hidden_in_every_form(url: str, secrets: set[str]) -> None:
    assert passwords(url) == secrets
    assert has_password(url)
    shown = redacted(url).replace("password", "").replace("Password", "")
    assert not [secret for secret in secrets if len(secret) > 1 and secret in shown]
    assert "***" in shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db/x",
        "postgresql://me@db:5432/x",
        "postgresql://me@db/x?sslmode=require&connect_timeout=5&application_name=a",
        "postgresql:///x?host=/run/postgresql&port=5432&user=me&dbname=x&hostaddr=::1",
        "postgresql://me@[::1]:5432/x",
    ],
)
def test_url__without_a_password_is_shown_whole(url: str) -> None:
    assert redacted(url) == url
    assert passwords(url) == set()
    assert not has_password(url)
    assert without_passwords(f"cannot reach {url}", url) == f"cannot reach {url}"


def test_unknown_option__is_hidden_but_is_no_password() -> None:
    """Any option may hold something secret; only a password keeps a URL out of the arguments of a command."""
    url = "postgresql://db/x?options=-c%20secret&sslrootcert=/ca.pem"
    assert redacted(url) == "postgresql://db/x?options=***&sslrootcert=***"
    assert not has_password(url)


@pytest.mark.parametrize("name", ["/home/me:you@x/perdure.db", "relative.db?password=1"])
def test_sqlite__is_shown_by_its_file(name: str) -> None:
    url = f"sqlite:///{name}"
    assert redacted(url) == name
    assert passwords(url) == set()
    assert without_passwords(name, url) == name


@pytest.mark.parametrize("text", ["host=db password=sesame", "me:sesame@db", "postgresql:sesame"])
def test_text__that_is_no_url_is_hidden_whole(text: str) -> None:
    assert redacted(text) == "***"
    assert redacted("nonsense") == "nonsense"


def test_longest_password__is_hidden_first() -> None:
    """Otherwise the rest of it would remain."""
    assert without_passwords("sesame-street", "postgresql://me:sesame@db/x?password=sesame-street") == "***"
