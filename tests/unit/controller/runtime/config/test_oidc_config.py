"""The section `oidc` of config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.runtime.config.config_file import ConfigFile, SettingsError
from perdure.controller.runtime.config.oidc_config import OidcConfig, is_safe_url, read_oidc_config


def read(home: Path, text: str) -> OidcConfig | None:
    (home / "config.yaml").write_text(text)
    return read_oidc_config(ConfigFile.load(home))


def test_section__is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "") is None
    config = read(
        tmp_path,
        "oidc: {issuer: 'https://login.example.org/', client_id: p, client_secret_file: s, roles: {ml: user}, "
        "default_role: viewer, allow_domains: [Example.ORG], scopes: [openid, groups]}",
    )
    assert config == OidcConfig(
        "https://login.example.org",
        "p",
        tmp_path / "s",
        "login.example.org",
        ("openid", "groups"),
        roles={"ml": "user"},
        default_role="viewer",
        allow_domains=("example.org",),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{issuer: 'http://login.example.org', client_id: p, default_role: user}", "https://"),
        ("{issuer: 7, client_id: p, default_role: user}", "issuer"),
        ("{issuer: 'https://i', default_role: user}", "client_id"),
        ("{issuer: 'https://i', client_id: p}", "nobody could sign in"),
        ("{issuer: 'https://i', client_id: p, default_role: root}", "default_role"),
        ("{issuer: 'https://i', client_id: p, roles: {a: root}}", "roles"),
        ("{issuer: 'https://i', client_id: p, default_role: user, scopes: openid}", "scopes"),
        ("{issuer: 'https://i', client_id: p, default_role: user, secret: x}", "no such setting"),
    ],
)
def test_mistakes__are_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read(tmp_path, f"oidc: {text}")


def test_secrets__are_sent_by_https_or_to_this_computer() -> None:
    assert is_safe_url("https://a.example/x")
    assert is_safe_url("http://127.0.0.1:8080/x")
    assert not any(map(is_safe_url, ("http://10.0.0.1/", "ftp://127.0.0.1/", "https://", "x", "http://[", "file:///x")))
