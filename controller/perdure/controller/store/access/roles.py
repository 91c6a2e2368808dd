"""Roles, and the permissions of each."""

from __future__ import annotations

from enum import Flag, StrEnum, auto


class Role(StrEnum):
    """What a user or a token may do: see `PERMISSIONS`."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


class AccessRight(Flag):
    """One thing that a caller may do. Every route declares which it needs."""

    READ = auto()  # see the market, the controller, and what the caller may see of jobs and clusters
    RUN = auto()  # launch, and change or enter what is the caller's own
    SEE_ALL = auto()  # see the jobs and clusters of everybody
    OPERATE = auto()  # cancel, preempt, stop and end those of everybody; the controller's log
    ADMINISTER = auto()  # users, tokens, the audit log, the controller itself; enter all machines


PERMISSIONS = {
    Role.VIEWER: AccessRight.READ | AccessRight.SEE_ALL,
    Role.USER: AccessRight.READ | AccessRight.RUN,
    Role.OPERATOR: AccessRight.READ | AccessRight.RUN | AccessRight.SEE_ALL | AccessRight.OPERATE,
    Role.ADMIN: ~AccessRight(0),
}
NEEDED_ROLE = {
    AccessRight.READ: Role.VIEWER,
    AccessRight.RUN: Role.USER,
    AccessRight.SEE_ALL: Role.VIEWER,
    AccessRight.OPERATE: Role.OPERATOR,
    AccessRight.ADMINISTER: Role.ADMIN,
}
"""The lowest role that has a permission, for error texts."""


def shared(user: Role, token: Role) -> AccessRight:
    """The permissions of a user's token: those that both roles have. So a `viewer` token of a `user` sees only what is
    the user's own."""
    return PERMISSIONS[user] & PERMISSIONS[token]
