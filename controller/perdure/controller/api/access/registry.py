"""Checks tokens of named users in memory, so that no call costs a query, and follows the database.

A token that is revoked here is refused at once, and at every other controller within `REFRESH_S` while the database
answers; streams that are open end then, too.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, Row

from perdure.controller.runtime.clock import Clock
from perdure.controller.store.access import audit, users
from perdure.controller.store.access.audit import DENIED, Actor, Deed
from perdure.controller.store.access.roles import AccessRight, Role, shared

REFRESH_S = 2.0
"""How often a controller asks the database whether users or tokens have changed."""
MAX_STALE_S = 5.0
"""What is promised: `REFRESH_S`, and the time that a query may take."""
_USE_INTERVAL_S = 60.0
"""How exact the time of a token's last use is."""
_DENIALS_PER_MINUTE = 10  # of an address or a user
_ALL_DENIALS_PER_MINUTE = 120
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True)
class Grant:
    """What a token allows to whom."""

    token_id: str
    user: str
    permissions: AccessRight
    digest: bytes = field(repr=False)
    expires_at: float | None = None
    is_revoked: bool = False  # or its user is disabled

    def is_valid(self, now: float) -> bool:
        return not self.is_revoked and (self.expires_at is None or now < self.expires_at)

    def refusal(self, now: float) -> str:
        """Why the token is not valid."""
        return "revoked" if self.is_revoked else "expired" if not self.is_valid(now) else ""


class AccessRegistry:
    """The tokens of named users, and what was denied, for one daemon. Safe to use from any thread.

    Without a database, as in tests, there are no named users.
    """

    def __init__(self, database: Engine | None = None, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock
        self._version: str | None = None
        self._grants: Mapping[str, Grant] = {}
        self._uses: dict[str, float] = {}
        self._stored_uses: dict[str, float] = {}
        self._denials: deque[tuple[Deed, float]] = deque(maxlen=1000)
        self._recent: dict[str, deque[float]] = {}
        self._refreshing = threading.Lock()
        self._lock = threading.Lock()  # never held during a query: the event loop takes it
        self.refresh()  # before the first call

    @property
    def has_users(self) -> bool:
        """Whether there has ever been a named user. From then on, the user of a job is that of the token."""
        return self._version is not None

    def find(self, token: str) -> Grant | None:
        """The grant of a token, which may have ended; None for an unknown one. Compares in constant time."""
        match = users.TOKEN.fullmatch(token)
        grant = self._grants.get(match[1]) if match else None
        digest = hashlib.sha256(token.encode()).digest()
        is_same = hmac.compare_digest(digest, grant.digest if grant else _NO_DIGEST)
        return grant if is_same else None

    def grant(self, token_id: str) -> Grant | None:
        """The grant of a token by its id, which may have ended."""
        return self._grants.get(token_id)

    def record_use(self, token_id: str, now: float) -> None:
        """The token was just used. It is stored by `tick`."""
        self._uses[token_id] = now

    # --- the database ---------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Follow changes of users and tokens. Raises what the database raises."""
        if self._database is None:
            return
        with self._refreshing, self._database.connect() as conn:
            version = users.version(conn)  # first: what changes afterwards has another version
            if version == self._version:
                return
            self._grants = {row.id: _grant(row) for row in users.grants(conn)}
            self._version = version

    def tick(self) -> None:
        """`refresh`, and store what was denied and when tokens were used. Raises what the database raises."""
        self.refresh()
        if self._database is None:
            return
        uses = {
            token_id: at
            for token_id, at in list(self._uses.items())
            if at - self._stored_uses.get(token_id, float("-inf")) >= _USE_INTERVAL_S
        }
        denials = [self._denials.popleft() for _ in range(len(self._denials))]
        if not uses and not denials:
            return
        try:
            with self._database.begin() as conn:
                audit.record_all(conn, denials)
                users.record_uses(conn, uses)
        except BaseException:
            self._denials.extendleft(reversed(denials))
            raise
        self._stored_uses.update(uses)

    def deny(self, actor: Actor, action: str, target: str = "", reason: str = "") -> None:
        """Record that something was denied. Some are left out if there are many, so that nobody can fill the log."""
        if self._clock is None:
            return
        now = self._clock.now()
        if self._is_rare(actor.user or actor.address, now, _DENIALS_PER_MINUTE) and self._is_rare(
            "", now, _ALL_DENIALS_PER_MINUTE
        ):
            detail = {"reason": reason} if reason else {}
            self._denials.append((Deed(actor, action, target, DENIED, detail), now))

    def _is_rare(self, who: str, now: float, per_minute: int) -> bool:
        """Whether `who` has been denied something fewer times within a minute. Counts this time."""
        with self._lock:
            if len(self._recent) > 1000:
                self._recent.clear()
            times = self._recent.setdefault(who, deque(maxlen=per_minute))
            if len(times) == per_minute and times[0] > now - 60.0:
                return False
            times.append(now)
            return True


def _grant(row: Row[Any]) -> Grant:
    return Grant(
        token_id=row.id,
        user=row.user,
        permissions=shared(Role(row.user_role), Role(row.role)),
        digest=bytes.fromhex(row.digest),
        expires_at=row.expires_at,
        is_revoked=row.revoked_at is not None or row.disabled_at is not None,
    )
