"""How endpoints of services get certificates by ACME (RFC 8555): the section `services` of config.yaml.

```yaml
services:
  acme:
    directory: https://acme-v02.api.letsencrypt.org/directory   # Let's Encrypt; or that of another authority
    email: ops@example.org
    agree_to_terms: true
    http_port: 80                    # where the authority's HTTP-01 validation arrives
    ca_file: /etc/perdure/ca.pem     # what the authority's own server is trusted by; default: the usual authorities
```

A service asks for one with `tls: {acme: model.example.org}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey, child_names

LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
CONFIG_KEYS = (
    ConfigKey("services.acme.directory", "URL", LETS_ENCRYPT, "The directory of the certificate authority."),
    ConfigKey("services.acme.email", "text", "none", "Whom the authority tells what concerns the certificates."),
    ConfigKey(
        "services.acme.agree_to_terms", "true", "required", "That you agree to the authority's terms of service."
    ),
    ConfigKey(
        "services.acme.http_port",
        "whole number",
        "80",
        "The port at which the controller answers the authority; it must be reached at port 80 of the domain.",
    ),
    ConfigKey(
        "services.acme.ca_file", "path", "none", "Certificates that the authority's server is trusted by, in PEM."
    ),
)
_PATH = ("services", "acme")
_MAX_PORT = 65_535


@dataclass(frozen=True)
class AcmeConfig:
    """The section `services.acme`."""

    directory: str = LETS_ENCRYPT
    email: str = ""
    http_port: int = 80
    ca_file: Path | None = None


def read_acme_config(home: Path) -> AcmeConfig | None:
    """From config.yaml; None without the section. Raises SettingsError, which names line and key."""
    source = ConfigFile.load(home)
    section = source.section("services", child_names(CONFIG_KEYS, "services")).get("acme")
    if section is None:
        return None
    if not isinstance(section, dict):
        raise source.error(_PATH, "expected a mapping")
    source.check(section, _PATH, child_names(CONFIG_KEYS, "services.acme"))
    if section.get("agree_to_terms") is not True:
        raise source.error(
            (*_PATH, "agree_to_terms"), "read the terms of the authority, and write: agree_to_terms: true"
        )
    directory = _text(source, section, "directory", LETS_ENCRYPT)
    if urlsplit(directory).scheme != "https" or not urlsplit(directory).hostname:
        raise source.error((*_PATH, "directory"), f"expected a URL with https, found {directory!r}")
    email = _text(source, section, "email", "")
    if email and "@" not in email:
        raise source.error((*_PATH, "email"), f"expected an address like ops@example.org, found {email!r}")
    port = section.get("http_port", AcmeConfig.http_port)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= _MAX_PORT:
        raise source.error((*_PATH, "http_port"), f"expected a number from 1 to {_MAX_PORT}, found {port!r}")
    ca_text = _text(source, section, "ca_file", "")
    ca_file = (home / Path(ca_text).expanduser()) if ca_text else None
    if ca_file is not None and not ca_file.is_file():
        raise source.error((*_PATH, "ca_file"), f"there is no file {ca_file}")
    return AcmeConfig(directory, email, port, ca_file)


def _text(source: ConfigFile, section: dict[str, Any], name: str, default: str) -> str:
    value = section.get(name, default)
    if not isinstance(value, str):
        raise source.error((*_PATH, name), f"expected text, found {value!r}")
    return value
