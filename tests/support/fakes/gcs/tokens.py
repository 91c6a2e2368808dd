"""Tokens: those of the account, and those limited to a bucket."""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

from support.fakes import google_account
from support.fakes.google_discovery import Invalid

_RESOURCE = "//storage.googleapis.com/projects/_/buckets/"
_READS = frozenset({"objects.get", "objects.list"})
_ROLES = {
    "inRole:roles/storage.objectViewer": _READS,
    "inRole:roles/storage.objectAdmin": _READS
    | {f"objects.{verb}" for verb in ("insert", "delete", "patch", "compose", "copy", "rewrite")},
}
_TEXT = r'("(?:[^"\\]|\\.)*")'
_CONDITION = re.compile(
    rf"resource\.name == {_TEXT} \|\| resource\.name\.startsWith\({_TEXT}\) \|\| "
    rf"api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)\.startsWith\({_TEXT}\)"
)
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "requested_token_type": _ACCESS_TOKEN,
    "subject_token_type": _ACCESS_TOKEN,
}


@dataclass(frozen=True)
class Narrowed:
    """The rights of a token that is limited to a bucket."""

    bucket: str
    methods: frozenset[str]  # that it allows
    ends_at: float  # by the monotonic clock
    prefix: str = ""  # of the objects; empty: all


class Tokens:
    """Issues tokens for buckets, and checks the tokens of calls."""

    def __init__(self, project: str) -> None:
        self.life_s = 3600.0  # of new tokens
        self.made: list[Narrowed] = []
        self._project = project
        self._narrowed: dict[str, Narrowed] = {}

    def exchange(self, body: bytes) -> dict[str, object]:
        """The answer of Google's token service to a call for a token with an access boundary. Raises Invalid."""
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        for name, expected in _EXCHANGE.items():
            if form.get(name) != expected:
                raise Invalid(400, "invalid_request", f"{name} is {form.get(name)!r}")
        if not google_account.is_signed(form["subject_token"], self._project):
            raise Invalid(401, "invalid_grant", "the subject token is not valid")
        (rule,) = json.loads(unquote(form["options"]))["accessBoundary"]["accessBoundaryRules"]
        (role,) = rule["availablePermissions"]
        if not rule["availableResource"].startswith(_RESOURCE) or role not in _ROLES:
            raise Invalid(400, "invalid_request", f"no such rule: {rule}")
        bucket = rule["availableResource"].removeprefix(_RESOURCE)
        prefix = _prefix(rule.get("availabilityCondition"), bucket)
        one = Narrowed(bucket, _ROLES[role], time.monotonic() + self.life_s, prefix)
        self.made.append(one)
        token = f"narrowed-{secrets.token_urlsafe(16)}"
        self._narrowed[token] = one
        return {
            "access_token": token,
            "issued_token_type": _ACCESS_TOKEN,
            "token_type": "Bearer",
            "expires_in": int(self.life_s),
        }

    def require(self, authorization: str, method: str, bucket: str, name: str, *, is_uniform: bool) -> None:
        """Raises Invalid unless the caller may do this to the bucket. `name`: of an object, or a listing's prefix."""
        token = authorization.removeprefix("Bearer ")
        if google_account.is_signed(token, self._project):
            return
        rights = self._narrowed.get(token)
        if rights is None or rights.ends_at <= time.monotonic():
            raise Invalid(401, "authError", "Invalid Credentials")
        if bucket != rights.bucket or method not in rights.methods or not is_uniform:
            raise Invalid(403, "forbidden", f"the token may not do {method} in {bucket}")
        if not name.startswith(rights.prefix) and name != rights.prefix.removesuffix("/"):
            raise Invalid(403, "forbidden", f"the token may not do {method} to {name}")


def _prefix(condition: dict[str, str] | None, bucket: str) -> str:
    """The prefix of a condition, whose parts must agree. Raises Invalid for another form than Google documents."""
    if condition is None:
        return ""
    match = _CONDITION.fullmatch(condition["expression"])
    if match is None:
        raise Invalid(400, "invalid_request", f"no such condition: {condition}")
    of_object, of_objects, of_lists = (str(json.loads(text)) for text in match.groups())
    if of_objects != f"projects/_/buckets/{bucket}/objects/{of_lists}" or of_objects != f"{of_object}/":
        raise Invalid(400, "invalid_request", f"the parts of {condition} disagree")
    return of_lists
