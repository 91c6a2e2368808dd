"""Google's credentials: the controller's own, and the narrow ones that it makes for nodes.

A node's token comes of a Credential Access Boundary: the controller's own is exchanged for one that is good for a
single bucket (cloud.google.com/iam/docs/downscoping-short-lived-credentials). That binds only where a bucket's rights
are the same for all of its objects ("uniform bucket-level access").
"""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.auth import credentials as google_credentials
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2 import sts

from perdure.controller.clouds.gcp.connections import find_credentials
from perdure.controller.storage.stores import StorageError

_EXCHANGE_URL = "https://sts.googleapis.com/v1/token"
_READS_AND_WRITES = "https://www.googleapis.com/auth/devstorage.read_write"
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a kind of token

_FRESH = datetime.timedelta(minutes=50)  # a node renews its token in good time, and may find nobody then


@dataclass(frozen=True)
class Token:
    """`expires_at`: epoch seconds."""

    value: str
    expires_at: float


class GcsCredentials:
    """Shared by threads. `key_file`: of a service account; None: Google's own chain. All raise google-auth's errors."""

    def __init__(self, key_file: str | None, *, exchange_url: str | None) -> None:
        self._key_file = key_file
        self._exchange_url = exchange_url or _EXCHANGE_URL
        self._lock = threading.Lock()
        self._found: tuple[Any, str | None] | None = None
        self._for_nodes: dict[tuple[str, bool], Any] = {}

    @property
    def project(self) -> str | None:
        """That of the credentials, if they name one."""
        return self._own()[1]

    @cached_property
    def session(self) -> AuthorizedSession:
        """For the controller's own calls."""
        return AuthorizedSession(self._own()[0])  # type: ignore[no-untyped-call]

    def token_for(self, bucket: str, *, writes: bool, is_uniform: bool) -> Token:
        """A token for a node, good for an hour at most, and for 50 minutes where Google gives so long a one. That
        of a machine it gives out again until minutes before its end.

        For a bucket that is not uniform it is good for all buckets that the controller may use, but for nothing else.
        Raises StorageError where not even that can be had.
        """
        with self._lock:
            key = (bucket, writes) if is_uniform else ("", True)
            if key not in self._for_nodes:
                own = self._own()[0]
                self._for_nodes[key] = (
                    _BucketCredentials(own, bucket, writes=writes, exchange_url=self._exchange_url)
                    if is_uniform
                    else _for_all_buckets(own, bucket)
                )
            found = self._for_nodes[key]
            if not found.valid or found.expiry < _utc_now() + _FRESH:
                found.refresh(Request())
            return Token(found.token, found.expiry.replace(tzinfo=datetime.UTC).timestamp())

    def _own(self) -> tuple[Any, str | None]:
        if self._found is None:
            self._found = find_credentials(self._key_file)
        return self._found


class _BucketCredentials(google_credentials.Credentials):
    """What is left of `source` when it is good for one bucket alone."""

    def __init__(self, source: Any, bucket: str, *, writes: bool, exchange_url: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        self._client = sts.Client(exchange_url)  # type: ignore[no-untyped-call]
        role = "roles/storage.objectAdmin" if writes else "roles/storage.objectViewer"
        rule = {
            "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
            "availablePermissions": [f"inRole:{role}"],
        }
        self._boundary = {"accessBoundary": {"accessBoundaryRules": [rule]}}

    def refresh(self, request: Request) -> None:
        self._source.refresh(request)
        told = self._client.exchange_token(  # type: ignore[no-untyped-call]
            request,
            grant_type=_GRANT,
            subject_token=self._source.token,
            subject_token_type=_ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN,
            additional_options=self._boundary,
        )
        self.token = told["access_token"]
        # Without a word on it, it ends with the token that it was made of.
        self.expiry = self._source.expiry
        if "expires_in" in told:
            self.expiry = _utc_now() + datetime.timedelta(seconds=int(told["expires_in"]))


def _utc_now() -> datetime.datetime:
    """As google-auth reads and writes times: of the wall clock, and without a zone."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # noqa: TID251


def _for_all_buckets(source: Any, bucket: str) -> Any:
    if not isinstance(source, google_credentials.Scoped):
        raise StorageError(
            f"bucket {bucket} has rights for single objects, so nodes would need a token that is good for all that "
            "these credentials may do",
            fix="turn on uniform access (`gcloud storage buckets update --uniform-bucket-level-access "
            f"gs://{bucket}`), or give the controller a service account",
        )
    return source.with_scopes([_READS_AND_WRITES])  # type: ignore[no-untyped-call]
