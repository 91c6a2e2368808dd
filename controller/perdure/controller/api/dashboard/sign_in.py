"""Signs browsers in: a one-time code is traded for a cookie, which is valid together with a value that the page keeps.

- A **code** is created for somebody who holds a token, and works once, within a minute, at any controller of the
  database. The database stores its digest, and the id of the token.
- The **cookie** is signed, not stored. It names the controller and the token, so it ends when the token is revoked or
  expires, and with the controller's own token, when that changes. Browsers send it to every port of a host, and scripts
  cannot read it.
- The **page value** is returned at sign-in only, and the page keeps it in the storage of its origin, which includes the
  port. A request counts only with both: another server on this computer, which is sent the cookie, cannot use it, and
  neither can another site, which can cause requests with the cookie but cannot add the header.
- A code may be somebody else's, who wants to see what is done in their name. So the page that is opened by a link first
  asks whether to sign in as the code's owner (`owner`), unless the controller has no named users, or this browser has
  just been sent to a provider for it. Both a cookie (`code_cookie`) and the storage of the page say that: a server on
  another port can set the cookie for a code of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection

from perdure.controller.api.access.permissions import Caller, caller_of_token
from perdure.controller.api.context import ApiContext
from perdure.controller.runtime.security.keyring import TOKEN_FILE
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records import facts

log = structlog.get_logger(__name__)

PAGE_HEADER = "perdure-csrf"
CODE_S = 60.0
IDLE_S = 12 * 3600.0
"""How long a cookie is valid. The page renews it while it is open."""
MAX_AGE_S = 7 * 86400.0
"""How long a browser stays signed in, however often its cookie is renewed."""
MAX_CODE_CHARS = 64

_CODE_BYTES = 16
_ENDED_TTL_S = 5.0
_CODES, _COMMAND_LINE_CODES, _ENDED = "sign_in_code.", "command_line_code.", "signed_out."
_COOKIE_PURPOSE, _PAGE_PURPOSE, _CODE_PURPOSE = "browser cookie", "browser page", "browser code"
_ID_SEPARATOR = "~"  # between the id of a token and the rest of a session's id
_UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True)
class BrowserSession:
    """A browser that is signed in. Times are by the controller's clock."""

    id: str
    signed_in_at: float
    valid_until: float

    @property
    def token_id(self) -> str:
        """The id of the token that it was signed in with; empty for the controller's own token."""
        token_id, separator, _ = self.id.partition(_ID_SEPARATOR)
        return token_id if separator else ""


@dataclass
class BrowserSessions:
    """Codes and cookies of one controller. Except for `refresh`, methods that take a connection use the database."""

    context: ApiContext
    _ended: set[str] = field(default_factory=set)  # changed in place only, from several threads: no end is lost
    _ended_read_at: float | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _ahead: asyncio.Task[None] | None = None  # kept, since the event loop does not

    @property
    def cookie_name(self) -> str:
        """Browsers accept the prefix from secure origins only, and then no other host can set such a cookie."""
        return f"{'__Host-' if self.is_secure else ''}perdure-{self.context.controller_id}"

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach this controller by HTTPS."""
        listen = self.context.settings.listen
        return listen.certificate is not None or listen.trust_proxy_tls

    def create_code(self, conn: Connection, token_id: str = "") -> str:
        """A code that signs one browser in, as the user of a token; the empty id is the controller's own token's."""
        return self._new_code(conn, _CODES, token_id)

    def create_command_line_code(self, conn: Connection, token_id: str, challenge: str) -> str:
        """A code that signs the command line in that knows the secret whose SHA-256 is `challenge`."""
        return self._new_code(conn, _COMMAND_LINE_CODES, f"{token_id} {challenge}")

    def _new_code(self, conn: Connection, kind: str, value: str) -> str:
        now = self.context.clock.now()
        for prefix in (_CODES, _COMMAND_LINE_CODES, _ENDED):
            for name, known in facts.with_prefix(conn, prefix).items():
                if float(known.partition(" ")[0]) <= now:
                    facts.remove(conn, name)
        code = secrets.token_urlsafe(_CODE_BYTES)
        facts.set(conn, kind + _digest(code), f"{now + self._scaled(CODE_S)!r} {value}".strip())
        return code

    def redeem_command_line_code(self, conn: Connection, code: str, secret: str) -> tuple[Caller, float] | None:
        """Whom a code signs a command line in as, and until when; None if it is unknown, used or expired, or another
        command line's. The code is void from now on."""
        value = facts.remove(conn, _COMMAND_LINE_CODES + _digest(code))
        now = self.context.clock.now()
        until, token_id, challenge = (value or "0 - -").split(" ")
        if float(until) <= now or not hmac.compare_digest(challenge, _digest(secret)):
            return None
        caller, grant = caller_of_token(self.context, token_id), self.context.access.grant(token_id)
        ends_at = math.inf if grant is None or grant.expires_at is None else grant.expires_at
        return None if caller is None else (caller, min(ends_at, now + self._scaled(IDLE_S)))

    def owner(self, conn: Connection, code: str) -> Caller | None:
        """Whom a code signs in, which stays valid; None if it is unknown, used or expired."""
        value = facts.get(conn, _CODES + _digest(code))
        if value is None or float(value.partition(" ")[0]) <= self.context.clock.now():
            return None
        return caller_of_token(self.context, value.partition(" ")[2], "")

    def redeem(self, conn: Connection, code: str) -> BrowserSession | None:
        """A new session for a code, which is void from now on; None if it is unknown, used or expired."""
        value = facts.remove(conn, _CODES + _digest(code))
        now = self.context.clock.now()
        if value is None or float(value.partition(" ")[0]) <= now:
            return None
        token_id = value.partition(" ")[2]
        id = (token_id + _ID_SEPARATOR if token_id else "") + secrets.token_urlsafe(_CODE_BYTES)
        session = BrowserSession(id, now, now + self._scaled(IDLE_S))
        return session if self.caller(session) is not None else None

    def caller(self, session: BrowserSession, address: str = "") -> Caller | None:
        """Whom a session stands for; None once its token is no longer valid."""
        return caller_of_token(self.context, session.token_id, address)

    def renew(self, session: BrowserSession) -> BrowserSession:
        """The session with a later end, but not beyond `MAX_AGE_S` after the sign-in."""
        until = min(self.context.clock.now() + self._scaled(IDLE_S), session.signed_in_at + self._scaled(MAX_AGE_S))
        return BrowserSession(session.id, session.signed_in_at, until)

    def end(self, conn: Connection, session: BrowserSession) -> None:
        """End the session, at once here and within `_ENDED_TTL_S` at other controllers."""
        facts.set(conn, _ENDED + session.id, repr(session.signed_in_at + self._scaled(MAX_AGE_S)))
        self._ended.add(session.id)

    async def refresh(self) -> None:
        """Read which sessions have ended, at most every few seconds. The first call raises what the database raises.

        Waits for the database only if what is known is older than `_ENDED_TTL_S`. Before that, it is read ahead: hints
        and requests must not wait for a busy database.
        """
        loop = asyncio.get_running_loop()
        age_s = math.inf if self._ended_read_at is None else loop.time() - self._ended_read_at
        if age_s < _ENDED_TTL_S / 2:
            return
        if age_s < _ENDED_TTL_S:
            if not self._reading.locked():
                self._ahead = asyncio.create_task(self._refresh_now())
            return
        await self._refresh_now()

    async def _refresh_now(self) -> None:
        async with self._reading:
            loop = asyncio.get_running_loop()
            is_first = self._ended_read_at is None
            if self._ended_read_at is not None and loop.time() < self._ended_read_at + _ENDED_TTL_S / 2:
                return
            try:
                ended = await asyncio.to_thread(self._read_ended)
            except UNAVAILABLE as error:
                if is_first:
                    raise
                log.warning("database.unavailable", error=str(error))
            else:
                self._ended.update(ended)
                self._ended_read_at = loop.time()

    def find(self, headers: Mapping[str, str], method: str) -> BrowserSession | None:
        """The session of a request from the page; None for any other request. Uses no database: see `refresh`.

        `headers`: by lower-case names.
        """
        if method in _UNSAFE and not self.is_same_origin(headers):
            return None
        session = self._read_cookies(headers.get("cookie", ""))
        page_value = headers.get(PAGE_HEADER, "")
        if session is None or not self.context.keyring.is_signed(_PAGE_PURPOSE, session.id, page_value):
            return None
        return session if self.is_valid(session) else None

    def is_same_origin(self, headers: Mapping[str, str]) -> bool:
        """Whether a request that changes something does not come from a page of another server, as browsers say."""
        origin = headers.get("origin")
        is_own = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").strip().lower()
        return is_own and headers.get("sec-fetch-site", "same-origin") == "same-origin"

    def is_valid(self, session: BrowserSession) -> bool:
        is_current = session.id not in self._ended and self.context.clock.now() < session.valid_until
        return is_current and self.caller(session) is not None

    def page_value(self, session: BrowserSession) -> str:
        return self.context.keyring.sign(_PAGE_PURPOSE, session.id)

    def set_cookie(self, session: BrowserSession) -> str:
        """The value of `Set-Cookie` for a session."""
        fields = f"{session.id}.{session.signed_in_at * 1000:.0f}.{session.valid_until * 1000:.0f}"
        signature = self.context.keyring.sign(_COOKIE_PURPOSE, self._signed_text(fields))
        seconds = (session.valid_until - self.context.clock.now()) / self.context.time_scale.speed
        return self._cookie(f"{fields}.{signature}", round(seconds))

    def clear_cookie(self) -> str:
        """The value of `Set-Cookie` that removes the cookie."""
        return self._cookie("", 0)

    def code_cookie(self, code: str) -> str:
        """The value of `Set-Cookie` that says that this browser asked for a code."""
        secure = "; Secure" if self.is_secure else ""
        name, value = self._code_cookie_name, self.context.keyring.sign(_CODE_PURPOSE, code)
        return f"{name}={value}; Path=/; Max-Age={CODE_S:.0f}; HttpOnly; SameSite=Strict{secure}"

    def has_asked_for(self, code: str, cookies: Mapping[str, str]) -> bool:
        """Whether a browser with these cookies asked for the code."""
        return self.context.keyring.is_signed(_CODE_PURPOSE, code, cookies.get(self._code_cookie_name, ""))

    @property
    def _code_cookie_name(self) -> str:
        return f"perdure-code-{self.context.controller_id}"

    def _cookie(self, value: str, max_age_s: int) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.cookie_name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"

    def _read_cookies(self, header: str) -> BrowserSession | None:
        """The session of the first valid cookie: servers on other ports may have set others of the same name."""
        for cookie in header.split(";"):
            name, _, value = cookie.strip().partition("=")
            match value.split("."):
                case [id, signed_in_ms, until_ms, key_id, mac] if name == self.cookie_name:
                    text = self._signed_text(f"{id}.{signed_in_ms}.{until_ms}")
                    if self.context.keyring.is_signed(_COOKIE_PURPOSE, text, f"{key_id}.{mac}"):
                        return BrowserSession(id, int(signed_in_ms) / 1000, int(until_ms) / 1000)
        return None

    def _signed_text(self, fields: str) -> str:
        token = self.context.keyring.fingerprints()[TOKEN_FILE]
        return f"{self.context.controller_id}:{token}:{fields}"

    def _read_ended(self) -> frozenset[str]:
        with self.context.database.connect() as conn:
            return frozenset(name.removeprefix(_ENDED) for name in facts.with_prefix(conn, _ENDED))

    def _scaled(self, seconds: float) -> float:
        return seconds * self.context.time_scale.speed


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
