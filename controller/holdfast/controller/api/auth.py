"""Who may call what: users by the user token, nodes by a token that is worth one attempt."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from holdfast.controller.channel import Place
from holdfast.controller.keyring import Keyring
from holdfast.controller.services import Services
from holdfast.controller.submission import Refused


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


def user(request: Request, authorization: Annotated[str, Header()] = "") -> Services:
    """Lets a user in. Refuses with 401."""
    found = services(request)
    if not found.keyring.is_user(bearer(authorization)):
        raise Refused(
            "the token is missing or wrong",
            where="Authorization",
            fix="send `Authorization: Bearer <token>`; the embedded controller keeps its token in HOLDFAST_HOME/token",
            status=401,
        )
    return found


def node(
    request: Request, authorization: Annotated[str, Header()] = "", holdfast_rank: Annotated[int, Header()] = 0
) -> Place:
    """Lets a node in, and says which. Refuses with 401."""
    place = node_of(services(request).keyring, authorization, holdfast_rank)
    if place is None:
        raise Refused("this token is worth no attempt", where="Authorization", status=401)
    return place


def node_of(keyring: Keyring, authorization: str, rank: int) -> Place | None:
    key = keyring.attempt_of(bearer(authorization))
    return (key, rank) if key is not None and rank >= 0 else None


def bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


User = Annotated[Services, Depends(user)]
Node = Annotated[Place, Depends(node)]
Parts = Annotated[Services, Depends(services)]
