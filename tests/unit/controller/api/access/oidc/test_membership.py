"""Who somebody is, by their claims."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.api.access.oidc.membership import NotAMember, member_of
from perdure.controller.runtime.config.oidc_config import OidcConfig
from perdure.controller.store.access.roles import Role

ROLES = {"ml": "user", "ops": "operator", "root": "admin"}


def config(**more: Any) -> OidcConfig:
    return OidcConfig("https://i", "perdure", **{"roles": ROLES, **more})


@pytest.mark.parametrize(
    ("claims", "more", "expected"),
    [
        ({"email": "Ada@Example.org", "groups": ["ml", "ops"]}, {}, ("ada@example.org", Role.OPERATOR)),
        ({"email": "a@b.c", "groups": "ml"}, {}, ("a@b.c", Role.USER)),
        ({"email": "a@b.c"}, {"default_role": "viewer"}, ("a@b.c", Role.VIEWER)),
        ({"email": "a@b.c", "groups": ["ml"]}, {"default_role": "operator"}, ("a@b.c", Role.OPERATOR)),
        ({"nick": "ada", "teams": ["ml"]}, {"user_claim": "nick", "groups_claim": "teams"}, ("ada", Role.USER)),
        ({"email": "a@b.c", "groups": ["ml"]}, {"allow_domains": ("b.c",)}, ("a@b.c", Role.USER)),
    ],
)
def test_member__has_a_name_and_the_highest_role(
    claims: dict[str, Any], more: dict[str, Any], expected: tuple[str, Role]
) -> None:
    assert member_of({"email_verified": True, **claims}, config(**more)) == expected


@pytest.mark.parametrize(
    ("claims", "more"),
    [
        ({"email": "a@b.c", "groups": ["others"]}, {}),
        ({"email": "a@b.c", "groups": {"ml": 1}}, {}),
        ({"groups": ["ml"]}, {}),
        ({"email": 7, "groups": ["ml"]}, {}),
        ({"email": "a b@c", "groups": ["ml"]}, {}),
        ({"email": "a@b.c", "email_verified": False, "groups": ["ml"]}, {}),
        ({"email": "a@b.c", "email_verified": False, "groups": ["ml"]}, {"trust_email": True}),
        ({"email": "a@b.c", "email_verified": "false", "groups": ["ml"]}, {}),
        ({"email": "\u212aate@b.c", "groups": ["ml"]}, {}),
        ({"nick": "\u212aate", "groups": ["ml"]}, {"user_claim": "nick"}),
        ({"nick": "a", "email": "a@\u212a.c", "groups": ["ml"]}, {"user_claim": "nick", "allow_domains": ("k.c",)}),
        ({"email": "a@evil.org", "groups": ["ml"]}, {"allow_domains": ("b.c",)}),
        ({"email": "a@x.b.c", "groups": ["ml"]}, {"allow_domains": ("b.c",)}),
        ({"nick": "ada", "groups": ["ml"]}, {"user_claim": "nick", "allow_domains": ("b.c",)}),
        ({"nick": "admin", "groups": ["ml"]}, {"user_claim": "nick"}),
        ({"nick": "Controller", "groups": ["ml"]}, {"user_claim": "nick"}),
    ],
)
def test_others__are_no_members(claims: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(NotAMember):
        member_of({"email_verified": True, **claims}, config(**more))


def test_address__counts_only_if_the_provider_says_that_it_is_verified() -> None:
    claims = {"email": "a@b.c", "groups": ["ml"]}
    with pytest.raises(NotAMember, match="email_verified"):
        member_of(claims, config())
    assert member_of(claims, config(trust_email=True)) == ("a@b.c", Role.USER)
    assert member_of({**claims, "email_verified": "true"}, config()) == ("a@b.c", Role.USER)
