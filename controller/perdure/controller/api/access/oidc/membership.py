"""Who somebody is here, by the claims of a provider: name and role. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.controller.runtime.config.oidc_config import ROLES, OidcConfig
from perdure.controller.store.access import users
from perdure.controller.store.access.roles import Role


class NotAMember(Exception):
    """They may not sign in. The text says why."""


def member_of(claims: Mapping[str, Any], config: OidcConfig) -> tuple[str, Role]:
    """The name and the role of the user. Raises NotAMember."""
    name = claims.get(config.user_claim)
    # Outside of ASCII, other letters become these in lower case: the sign of Kelvin, for one, a k.
    if not isinstance(name, str) or not name.isascii() or not users.NAME.fullmatch(name.lower()):
        raise NotAMember(f"the claim {config.user_claim!r} is no name of a user")
    name = name.lower()
    if name in users.RESERVED_NAMES:
        raise NotAMember(f"{name} is a name of the controller's own")
    if config.user_claim == "email" or config.allow_domains:
        _check_address(claims, config)
    groups = claims.get(config.groups_claim)
    given = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    roles = [config.roles[group] for group in given if isinstance(group, str) and group in config.roles]
    if config.default_role is not None:
        roles.append(config.default_role)
    if not roles:
        raise NotAMember("none of their groups gives a role, and there is no default_role")
    return name, Role(max(roles, key=ROLES.index))


def _check_address(claims: Mapping[str, Any], config: OidcConfig) -> None:
    """An address that the provider has not verified is anybody's."""
    address = claims.get("email")
    if claims.get("email_verified", config.trust_email) not in (True, "true"):  # a text from Cognito
        raise NotAMember("the provider does not say that it has verified their address (email_verified)")
    domain = address.rpartition("@")[2] if isinstance(address, str) and address.isascii() else ""
    domain = domain.lower()
    if config.allow_domains and domain not in config.allow_domains:
        raise NotAMember(f"the domain {domain!r} is not among oidc.allow_domains")
