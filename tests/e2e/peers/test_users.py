"""Named users of several controllers: a token works at each of them, and is refused soon after it is revoked."""

from __future__ import annotations

from time import monotonic

import pytest

from e2e.peers.cluster import StartCluster
from perdure.sdk.connection import users
from perdure.sdk.connection.client import ApiError, Client
from perdure.sdk.connection.endpoint import Endpoint
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow
PROMISED_S = 5.0  # docs/concepts/security.md


def test_token__works_and_ends_at_every_controller(several: StartCluster) -> None:
    cluster = several("a", "b")
    here, there = cluster.client_of("a"), cluster.client_of("b")
    users.create_user(here, "ada", {"role": "user"})
    made = users.create_token(here, "ada")
    of_ada = [Client(Endpoint(client.endpoint.url, made["token"])) for client in (here, there)]
    cluster.until(lambda: users.whoami(of_ada[1])["user"] == "ada", "the other controller knows the token")
    job = cluster.submit("sleep 600", client=of_ada[0])
    assert cluster.client.job(job)["user"] == "ada"
    assert [page["job_id"] for page in of_ada[1].jobs()["jobs"]] == [job]
    users.revoke_token(here, made["id"])
    revoked_at = monotonic()
    with pytest.raises(ApiError, match="rejects this token"):
        of_ada[0].jobs()
    cluster.until(lambda: _is_refused(of_ada[1]), "the other controller refuses the token")
    assert monotonic() - revoked_at <= scaled(PROMISED_S)
    entries = users.audit_log(there, action="token.")
    assert [entry["action"] for entry in entries if entry["outcome"] == "allowed"] == ["token.revoke", "token.create"]


def _is_refused(client: Client) -> bool:
    try:
        client.jobs()
    except ApiError as error:
        return error.status == 401
    return False
