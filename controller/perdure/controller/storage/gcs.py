"""Buckets of Google Cloud Storage, by its JSON API. Google's libraries are imported when a bucket is first needed.

The calls and their errors: cloud.google.com/storage/docs/json_api/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from perdure.controller.clouds.base import Fault
from perdure.controller.storage.stores import (
    ANYWHERE,
    RETRY_AFTER_S,
    Access,
    StorageError,
    check_bucket_name,
    check_key,
)
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

if TYPE_CHECKING:
    from requests import Response

    from perdure.controller.storage.gcs_credentials import GcsCredentials

PUBLIC_URL = "https://storage.googleapis.com"
_PATIENCE_S = (5.0, 60.0)  # to connect, and between two bytes
_REMOVED_AT_ONCE = 16
_BUCKET_FIELDS = "location,iamConfiguration/uniformBucketLevelAccess/enabled"

# What the API gives as an error's reason → (what the caller does next, reason). Others: by the HTTP status.
_FAULTS: dict[str, tuple[FaultKind, Reason]] = {
    "rateLimitExceeded": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "userRateLimitExceeded": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "backendError": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "conflict": (FaultKind.RETRY_LATER, Reason.THROTTLED),  # a bucket that is not empty yet
    "quotaExceeded": (FaultKind.GIVE_UP, Reason.QUOTA),
    "StorageError": (FaultKind.GIVE_UP, Reason.BAD_REQUEST),
    "DefaultCredentialsError": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "RefreshError": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "OAuthError": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
}


class GcsError(Exception):
    """What the API answers in place of what was asked for."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason = status, reason


class GcsStore:
    """`project`: where buckets are made; None: that of the credentials. `location` of new buckets; None: Google's
    default. `key_file`: a service account's key; None: credentials as Google's own tools find them. `endpoint`: another
    server than Google's, which also exchanges tokens.

    A node of Google's cloud that has a service account (`nodes_have_role`) uses its own. Others are given tokens of at
    most an hour that are good for their bucket alone, which their agents renew.
    """

    name = "gcs"

    def __init__(
        self,
        *,
        project: str | None = None,
        location: str | None = None,
        key_file: str | None = None,
        endpoint: str | None = None,
        nodes_have_role: bool = False,
    ) -> None:
        self.endpoint = endpoint.rstrip("/") if endpoint else None
        self.location = location
        self._project = project
        self._key_file = key_file
        self._nodes_have_role = nodes_have_role

    @cached_property
    def _credentials(self) -> GcsCredentials:
        try:
            from perdure.controller.storage.gcs_credentials import GcsCredentials
        except ModuleNotFoundError as error:
            raise StorageError("Google's buckets need google-auth", fix="install perdure[gcp]") from error
        exchange_url = f"{self.endpoint}/v1/token" if self.endpoint else None
        return GcsCredentials(self._key_file, exchange_url=exchange_url)

    def ensure(self, bucket: str) -> bool:
        check_bucket_name(bucket, store=self.name)
        if self.exists(bucket):
            return False
        wanted: dict[str, Any] = {
            "name": bucket,
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},  # nodes' tokens need it
        }
        if self.location is not None:
            wanted["location"] = self.location
        try:
            self._call("POST", "/storage/v1/b", params={"project": self._project_id}, json=wanted)
        except GcsError as error:
            if error.status != 409:
                raise
            if not self.exists(bucket):  # of another project: it would have been found
                raise _belongs_to_others(bucket) from error
            return False
        return True

    @property
    def _project_id(self) -> str:
        project = self._project or self._credentials.project
        if project is None:
            raise StorageError("no project is named for new buckets", fix="set gcs.project in config.yaml")
        return project

    def exists(self, bucket: str) -> bool:
        check_bucket_name(bucket, store=self.name)
        return self._look(bucket) is not None

    def _look(self, bucket: str) -> Mapping[str, Any] | None:
        """What Google says of a bucket; None if there is none."""
        try:
            return self._call("GET", f"/storage/v1/b/{bucket}", params={"fields": _BUCKET_FIELDS})
        except GcsError as error:
            if error.status == 404:
                return None
            if error.status == 403:
                raise _belongs_to_others(bucket) from error
            raise

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        check_bucket_name(bucket, store=self.name)
        check_key(key)
        params = {"uploadType": "media", "name": key}
        headers = {"Content-Type": "application/octet-stream"}
        self._call("POST", f"/upload/storage/v1/b/{bucket}/o", params=params, headers=headers, data=body)

    def remove(self, bucket: str) -> None:
        check_bucket_name(bucket, store=self.name)
        try:
            with ThreadPoolExecutor(_REMOVED_AT_ONCE) as pool:
                for page in self._versions(bucket):
                    for _ in pool.map(lambda found: self._delete(bucket, found), page):
                        pass
            self._call("DELETE", f"/storage/v1/b/{bucket}")
        except GcsError as error:
            if error.status != 404:
                raise

    def _versions(self, bucket: str) -> Iterator[list[Mapping[str, str]]]:
        """Every object, and every version of it that is kept, in pages."""
        params = {"versions": "true", "fields": "items(name,generation),nextPageToken"}
        while True:
            page = self._call("GET", f"/storage/v1/b/{bucket}/o", params=params)
            yield page.get("items", [])
            if "nextPageToken" not in page:
                return
            params["pageToken"] = page["nextPageToken"]

    def _delete(self, bucket: str, found: Mapping[str, str]) -> None:
        path = f"/storage/v1/b/{bucket}/o/{quote(found['name'], safe='')}"
        try:
            self._call("DELETE", path, params={"generation": found["generation"]})
        except GcsError as error:
            if error.status != 404:
                raise

    def rclone_remote(self, bucket: str, access: Access = ANYWHERE, /) -> dict[str, object]:
        check_bucket_name(bucket, store=self.name)
        remote: dict[str, object] = {"type": "gcs", "bucket_policy_only": True}
        if self.endpoint is not None:
            remote["endpoint"] = f"{self.endpoint}/storage/v1/"
        if access.cloud == "gcp" and self._nodes_have_role:
            return {**remote, "env_auth": True}
        # A bucket that was removed is a mount that fails, which the node tells; one never told would wait without end.
        found = self._look(bucket) or {}
        uniform = found.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled", True)
        token = self._credentials.token_for(bucket, writes=access.writes, is_uniform=uniform)
        return {**remote, "access_token": token.value, "expires_at": token.expires_at}

    def classify(self, error: Exception) -> Fault:
        code = getattr(error, "reason", None) if isinstance(error, GcsError) else type(error).__name__
        kind, reason = _FAULTS.get(str(code)) or _by_status(error)
        if getattr(error, "retryable", False):  # google-auth's word on who gives out tokens
            kind, reason = FaultKind.RETRY_LATER, Reason.THROTTLED
        retry_after_s = RETRY_AFTER_S if kind is FaultKind.RETRY_LATER else None
        return Fault(kind, reason, str(code), str(error), retry_after_s)

    def _call(self, method: str, path: str, **parts: Any) -> Mapping[str, Any]:
        """The answer's JSON; {} where there is none. Raises GcsError, and requests' and google-auth's errors."""
        url = (self.endpoint or PUBLIC_URL) + path
        session = self._credentials.session
        answer = session.request(method, url, timeout=_PATIENCE_S, **parts)  # type: ignore[no-untyped-call]
        if answer.status_code >= 300:
            raise _error(answer)
        found: Mapping[str, Any] = answer.json() if answer.content else {}
        return found


def _error(answer: Response) -> GcsError:
    try:
        told = answer.json()["error"]
        reason = told["errors"][0]["reason"]
    except (ValueError, KeyError, IndexError, TypeError):
        return GcsError(answer.status_code, answer.reason or "", answer.text[:500])
    return GcsError(answer.status_code, reason, told.get("message", ""))


def _belongs_to_others(bucket: str) -> StorageError:
    return StorageError(
        f"bucket {bucket} exists, but these credentials may not use it",
        fix="choose another name (Google's names are shared by all projects), or allow what "
        "deploy/iam/gcp-controller.yaml lists",
    )


def _by_status(error: Exception) -> tuple[FaultKind, Reason]:
    """Without an answer (a broken connection), or with a server's error, the same call may work later."""
    if isinstance(error, GcsError):
        if error.status >= 500 or error.status in (408, 429):
            return FaultKind.RETRY_LATER, Reason.THROTTLED
        return FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS if error.status in (401, 403) else Reason.BAD_REQUEST
    if type(error).__module__.startswith(("requests", "urllib3", "google.auth")) or isinstance(error, OSError):
        return FaultKind.RETRY_LATER, Reason.THROTTLED
    return FaultKind.GIVE_UP, Reason.BAD_REQUEST
