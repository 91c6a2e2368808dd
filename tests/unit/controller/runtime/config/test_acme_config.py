"""The section `services.acme` of config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.runtime.config.acme_config import LETS_ENCRYPT, AcmeConfig, read_acme_config
from perdure.controller.runtime.config.config_file import SettingsError


def read(home: Path, text: str) -> AcmeConfig | None:
    (home / "config.yaml").write_text(text)
    return read_acme_config(home)


def test_section__has_the_defaults_of_lets_encrypt(tmp_path: Path) -> None:
    assert read(tmp_path, "") is None
    assert read(tmp_path, "services: {acme: {agree_to_terms: true}}") == AcmeConfig(LETS_ENCRYPT, "", 80, None)


def test_section__is_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    given = "agree_to_terms: true, directory: https://ca.lan/dir, email: a@b.c, http_port: 8089, ca_file: ca.pem"
    assert read(tmp_path, f"services: {{acme: {{{given}}}}}") == AcmeConfig(
        "https://ca.lan/dir", "a@b.c", 8089, tmp_path / "ca.pem"
    )


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ("{acme: 1}", "services.acme: expected a mapping"),
        ("{acme: {}}", "agree_to_terms: read the terms"),
        ("{acme: {agree_to_terms: yes please}}", "agree_to_terms: read the terms"),
        ("{acme: {agree_to_terms: true, directory: 'http://ca.lan'}}", "directory: expected a URL with https"),
        ("{acme: {agree_to_terms: true, email: me}}", "email: expected an address"),
        ("{acme: {agree_to_terms: true, http_port: 0}}", "http_port: expected a number"),
        ("{acme: {agree_to_terms: true, ca_file: nowhere.pem}}", "ca_file: there is no file"),
        ("{acme: {agree_to_terms: true, mail: a@b.c}}", "no such setting"),
        ("{acne: {}}", "no such setting"),
    ],
)
def test_section__that_is_wrong_is_refused(tmp_path: Path, section: str, error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        read(tmp_path, f"services: {section}")
