"""Who may call what: users by the user token, nodes by a token that is worth one attempt.

An attempt's token is worth something while its attempt is: `spec` and files until the attempt is gone; the channel for
`AFTERLIFE_S` longer, so that a machine that was written off and lives after all is told to stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import bindparam, select

from perdure.controller.api.gate import NO_TOKEN
from perdure.controller.channel import Place
from perdure.controller.refusing import Refused
from perdure.controller.services import Services
from perdure.controller.store.jobs import Attempt, Task
from perdure.controller.turns import attempt_of
from perdure.recovery.statuses import AttemptState

AFTERLIFE_S = 3600.0

_USER = HTTPBearer(auto_error=False, scheme_name="user", description="The user token: PERDURE_HOME/token")
_NODE = HTTPBearer(auto_error=False, scheme_name="attempt", description="A token that is worth one attempt")
_ATTEMPT = (
    select(Attempt.c.state, Attempt.c.gone_at, Task.c.num_nodes)
    .join(Task, (Task.c.job_id == Attempt.c.job_id) & (Task.c.index == Attempt.c.task_index))
    .where(
        Attempt.c.job_id == bindparam("job_id"),
        Attempt.c.task_index == bindparam("index"),
        Attempt.c.generation == bindparam("generation"),
    )
)
Given = HTTPAuthorizationCredentials | None


@dataclass(frozen=True)
class Admission:
    """A node that was let in. `is_live`: its attempt is not gone."""

    place: Place
    is_live: bool


async def services(request: Request) -> Services:
    """As what asks nobody does, it stays on the event loop: each hop to a thread and back is a wait."""
    found: Services = request.app.state.services
    return found


async def user(daemon: Annotated[Services, Depends(services)], given: Annotated[Given, Depends(_USER)]) -> Services:
    """Lets a user in. Refuses with 401."""
    if given is None or not daemon.keyring.is_user(given.credentials.strip()):
        raise Refused(**NO_TOKEN, status=401)
    return daemon


def node(
    daemon: Annotated[Services, Depends(services)],
    given: Annotated[Given, Depends(_NODE)],
    perdure_rank: Annotated[str, Header(description="The node's rank, 0 if not given")] = "0",
) -> Admission:
    """Lets a node of a living attempt in, and says which. Refuses with 401."""
    admitted = admit(daemon, given.credentials if given else "", perdure_rank)
    if admitted is None or not admitted.is_live:
        raise Refused("this token is worth no living attempt, or not this rank", where="Authorization", status=401)
    return admitted


def known(daemon: Services, token: str, rank: str) -> Admission | None:
    """Who a node is whose attempt lives and is in this daemon's hands; asks no database. None: `admit` says it."""
    if (shown := _shown(daemon, token, rank)) is None:
        return None
    key, number = shown
    attempt = attempt_of(daemon.reconciler.view(key[0]), key)
    if attempt is None or attempt.state is AttemptState.GONE or number >= len(attempt.nodes):
        return None
    return Admission(shown, is_live=True)


def admit(daemon: Services, token: str, rank: str) -> Admission | None:
    """Who a node is: None for a token that is worth nothing (any more), and for a rank that its attempt has not."""
    if (shown := _shown(daemon, token, rank)) is None:
        return None
    key, number = shown
    with daemon.database.connect() as conn:
        row = conn.execute(_ATTEMPT, {"job_id": key[0], "index": key[1], "generation": key[2]}).first()
    if row is None or number >= row.num_nodes:
        return None
    is_live = row.state != AttemptState.GONE.value
    if not is_live and daemon.clock.now() >= (row.gone_at or 0.0) + AFTERLIFE_S * daemon.pace.speed:
        return None
    return Admission(shown, is_live)


def _shown(daemon: Services, token: str, rank: str) -> Place | None:
    """What a token and a rank say; None for nonsense."""
    key = daemon.keyring.attempt_of(token.strip())
    if key is None or not (rank.isascii() and rank.isdecimal() and len(rank) < 10):
        return None
    return key, int(rank)


User = Annotated[Services, Depends(user)]
Node = Annotated[Admission, Depends(node)]
Parts = Annotated[Services, Depends(services)]
