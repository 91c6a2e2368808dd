"""Sign-in by a provider of OpenID Connect: the section `oidc` of config.yaml.

```yaml
oidc:
  issuer: https://login.example.org
  client_id: perdure
  client_secret_file: oidc.secret       # relative to PERDURE_HOME; not for a public client
  roles: {ml-admins: admin, ml-team: user}   # by the groups of the provider
  default_role: viewer                  # of everybody else; without it, they are refused
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.listen import is_loopback

ROLES = ("viewer", "user", "operator", "admin")  # as `store.access.roles`, the lowest first

CONFIG_KEYS = (
    ConfigKey("oidc.issuer", "URL", "required", "The provider, as it calls itself; without the path `/.well-known/…`."),
    ConfigKey("oidc.client_id", "text", "required", "The name under which the provider knows this controller."),
    ConfigKey("oidc.client_secret_file", "path", "none", "The file of the client's secret, relative to PERDURE_HOME."),
    ConfigKey("oidc.name", "text", "the issuer's host", "The name of the provider on the button of the sign-in page."),
    ConfigKey("oidc.scopes", "list of text", "[openid, email, profile]", "What the provider is asked for."),
    ConfigKey("oidc.user_claim", "text", "email", "The claim that becomes the user's name here, in lower case."),
    ConfigKey("oidc.groups_claim", "text", "groups", "The claim with the user's groups."),
    ConfigKey("oidc.roles", "mapping", "{}", "The role that each group gives; the highest one counts."),
    ConfigKey(
        "oidc.default_role",
        f"one of {', '.join(ROLES)}",
        "none",
        "The role of users without such a group; without a default, they are refused.",
    ),
    ConfigKey(
        "oidc.trust_email",
        "bool",
        "false",
        "Believe addresses of a provider that does not say whether it has verified them. Only if its users cannot set "
        "their address themselves.",
    ),
    ConfigKey("oidc.allow_domains", "list of text", "[] (all)", "The domains that a user's address may have."),
)


@dataclass(frozen=True)
class OidcConfig:
    """`roles`: by group."""

    issuer: str
    client_id: str
    client_secret_file: Path | None = None
    name: str = ""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    user_claim: str = "email"
    groups_claim: str = "groups"
    roles: Mapping[str, str] = field(default_factory=dict)
    default_role: str | None = None
    allow_domains: tuple[str, ...] = ()
    trust_email: bool = False


def read_oidc_config(source: ConfigFile) -> OidcConfig | None:
    """The section `oidc` of config.yaml; None without one. Raises SettingsError, which names the key."""
    section = source.section("oidc", child_names(CONFIG_KEYS, "oidc"))
    if not section:
        return None
    issuer, client_id = (_text(source, section, name, required=True) for name in ("issuer", "client_id"))
    if not is_safe_url(issuer):
        raise source.error(("oidc", "issuer"), "expected a URL that begins with https://")
    secret = _text(source, section, "client_secret_file")
    trust_email = section.get("trust_email", False)
    if not isinstance(trust_email, bool):
        raise source.error(("oidc", "trust_email"), f"expected true or false, found {trust_email!r}")
    roles, default_role = section.get("roles") or {}, section.get("default_role")
    if not isinstance(roles, dict) or not all(isinstance(g, str) and role in ROLES for g, role in roles.items()):
        raise source.error(("oidc", "roles"), f"expected a mapping of groups to roles ({', '.join(ROLES)})")
    if default_role is not None and default_role not in ROLES:
        raise source.error(("oidc", "default_role"), f"expected one of {', '.join(ROLES)}, found {default_role!r}")
    if not roles and default_role is None:
        raise source.error(("oidc",), "nobody could sign in: add roles, or default_role")
    return OidcConfig(
        issuer.rstrip("/"),
        client_id,
        source.path.parent / Path(secret).expanduser() if secret else None,
        _text(source, section, "name") or str(urlsplit(issuer).hostname),
        _texts(source, section, "scopes", OidcConfig.scopes),
        _text(source, section, "user_claim") or OidcConfig.user_claim,
        _text(source, section, "groups_claim") or OidcConfig.groups_claim,
        dict(roles),
        default_role,
        tuple(domain.lower() for domain in _texts(source, section, "allow_domains", ())),
        trust_email,
    )


def is_safe_url(url: str) -> bool:
    """Whether a secret may be sent to a URL: by HTTPS, or to this computer."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _text(source: ConfigFile, section: Mapping[str, Any], name: str, *, required: bool = False) -> str:
    value = section.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise source.error(("oidc", name), "expected a text")
    return value


def _texts(source: ConfigFile, section: Mapping[str, Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = section.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise source.error(("oidc", name), "expected a list of texts")
    return tuple(value)
