"""Google's credentials: the controller's own, and downscoped ones for nodes.

A node's token has a Credential Access Boundary: the controller's token is exchanged for one that is valid only for
one bucket and prefix (cloud.google.com/iam/docs/downscoping-short-lived-credentials). The boundary is effective only
for buckets with uniform bucket-level access, whose permissions are the same for all objects.
"""

from __future__ import annotations

import datetime
import json
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.auth import credentials as google_credentials
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2 import sts

from perdure.controller.buckets.stores import StorageError
from perdure.controller.clouds.gcp.sdk.connections import find_credentials

_EXCHANGE_URL = "https://sts.googleapis.com/v1/token"
_READS_AND_WRITES = "https://www.googleapis.com/auth/devstorage.read_write"
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a kind of token

_MIN_TOKEN_LIFETIME = datetime.timedelta(minutes=50)  # a node may be unable to renew its token while no controller runs


@dataclass(frozen=True)
class Token:
    """`expires_at`: epoch seconds."""

    value: str
    expires_at: float


class GcsCredentials:
    """The controller's credentials, and the tokens of nodes. Thread-safe; methods raise google-auth's errors.

    `key_file`: of a service account; None: the default chain.
    """

    def __init__(self, key_file: str | None, *, exchange_url: str | None) -> None:
        self._key_file = key_file
        self._exchange_url = exchange_url or _EXCHANGE_URL
        self._lock = threading.Lock()
        self._loaded: tuple[Any, str | None] | None = None
        self._for_nodes: dict[tuple[str, str, bool], Any] = {}

    @property
    def project(self) -> str | None:
        """The project of the credentials, if they name one."""
        return self._controller_credentials()[1]

    @cached_property
    def session(self) -> AuthorizedSession:
        """The HTTP session of the controller's own calls."""
        return AuthorizedSession(self._controller_credentials()[0])  # type: ignore[no-untyped-call]

    def token_for(self, bucket: str, *, writes: bool, is_uniform: bool, prefix: str = "") -> Token:
        """A token for a node that works below `prefix` (empty: in the whole bucket).

        It is valid for an hour at most and, if Google issues one that long, for at least 50 minutes.

        If the controller's credentials are those of its Google machine, it may be valid for only a few minutes. For a
        bucket without uniform access the token is valid for all buckets of the controller, but for nothing else; raises
        StorageError if not even that is possible.
        """
        with self._lock:
            key = (bucket, prefix, writes) if is_uniform else ("", "", True)
            if key not in self._for_nodes:
                own = self._controller_credentials()[0]
                self._for_nodes[key] = (
                    _BucketCredentials(own, bucket, prefix, writes=writes, exchange_url=self._exchange_url)
                    if is_uniform
                    else _for_all_buckets(own, bucket)
                )
            credentials = self._for_nodes[key]
            if not credentials.valid or credentials.expiry < _utc_now() + _MIN_TOKEN_LIFETIME:
                credentials.refresh(Request())
            return Token(credentials.token, credentials.expiry.replace(tzinfo=datetime.UTC).timestamp())

    def _controller_credentials(self) -> tuple[Any, str | None]:
        if self._loaded is None:
            self._loaded = find_credentials(self._key_file)
        return self._loaded


class _BucketCredentials(google_credentials.Credentials):
    """`source`, downscoped to one bucket, below `prefix` if it is not empty."""

    def __init__(self, source: Any, bucket: str, prefix: str, *, writes: bool, exchange_url: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        self._client = sts.Client(exchange_url)  # type: ignore[no-untyped-call]
        role = "roles/storage.objectAdmin" if writes else "roles/storage.objectViewer"
        rule: dict[str, Any] = {
            "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
            "availablePermissions": [f"inRole:{role}"],
        }
        if below := prefix.strip("/"):
            object_name = f"projects/_/buckets/{bucket}/objects/{below}"
            is_object = f"resource.name == {json.dumps(object_name)}"  # a mount may be of one file
            is_below = f"resource.name.startsWith({json.dumps(object_name + '/')})"
            listed = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
            expression = f"{is_object} || {is_below} || {listed}.startsWith({json.dumps(below + '/')})"
            rule["availabilityCondition"] = {"title": "below the prefix", "expression": expression}
        self._boundary = {"accessBoundary": {"accessBoundaryRules": [rule]}}

    def refresh(self, request: Request) -> None:
        self._source.refresh(request)
        response = self._client.exchange_token(  # type: ignore[no-untyped-call]
            request,
            grant_type=_GRANT,
            subject_token=self._source.token,
            subject_token_type=_ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN,
            additional_options=self._boundary,
        )
        self.token = response["access_token"]
        # Unless the response says otherwise, it expires with the token that it was exchanged for.
        self.expiry = self._source.expiry
        if "expires_in" in response:
            self.expiry = _utc_now() + datetime.timedelta(seconds=int(response["expires_in"]))


def _utc_now() -> datetime.datetime:
    """Wall-clock time without a zone, as google-auth represents times."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # noqa: TID251


def _for_all_buckets(source: Any, bucket: str) -> Any:
    if not isinstance(source, google_credentials.Scoped):
        raise StorageError(
            f"bucket {bucket} has permissions for single objects, so nodes would need a token with all permissions of "
            "these credentials",
            fix="turn on uniform access (`gcloud storage buckets update --uniform-bucket-level-access "
            f"gs://{bucket}`), or give the controller a service account",
        )
    return source.with_scopes([_READS_AND_WRITES])  # type: ignore[no-untyped-call]
