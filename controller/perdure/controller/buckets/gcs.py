"""Buckets of Google Cloud Storage, through its JSON API. Google's libraries are imported when a bucket is first used.

The calls and their errors: cloud.google.com/storage/docs/json_api/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from perdure.controller.buckets.stores import (
    ANYWHERE,
    RETRY_AFTER_S,
    Access,
    StorageError,
    check_bucket_name,
    check_key,
)
from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from perdure.sdk.connection.installation import install_command

if TYPE_CHECKING:
    from requests import Response

    from perdure.controller.buckets.gcs_credentials import GcsCredentials

PUBLIC_URL = "https://storage.googleapis.com"
_TIMEOUTS_S = (5.0, 60.0)  # for the connection, and between two bytes
_DELETE_THREADS = 16
_BUCKET_FIELDS = "location,iamConfiguration/uniformBucketLevelAccess/enabled"

# The reason in the API's error → (what the caller does next, reason). Others: by the HTTP status.
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
    """An error response of the API."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason = status, reason


class GcsStore:
    """Buckets of one set of Google credentials.

    A node in Google Cloud that has a service account (`nodes_have_role`) uses that. Other nodes get tokens that are
    valid for an hour at most and only for their bucket; their agents renew them.
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
        """`project`, `location`: of new buckets; None: that of the credentials, and Google's default.

        `key_file`: of a service account; None: application default credentials. `endpoint`: another server than
        Google's, which also exchanges tokens.
        """
        self.endpoint = endpoint.rstrip("/") if endpoint else None
        self.location = location
        self._project = project
        self._key_file = key_file
        self._nodes_have_role = nodes_have_role

    @cached_property
    def _credentials(self) -> GcsCredentials:
        try:
            from perdure.controller.buckets.gcs_credentials import GcsCredentials
        except ModuleNotFoundError as error:
            raise StorageError("Google's buckets need google-auth", fix=f"run: {install_command('gcp')}") from error
        exchange_url = f"{self.endpoint}/v1/token" if self.endpoint else None
        return GcsCredentials(self._key_file, exchange_url=exchange_url)

    def ensure(self, bucket: str) -> bool:
        check_bucket_name(bucket, store=self.name)
        if self.exists(bucket):
            return False
        bucket_config: dict[str, Any] = {
            "name": bucket,
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},  # required for the nodes' tokens
        }
        if self.location is not None:
            bucket_config["location"] = self.location
        try:
            self._call("POST", "/storage/v1/b", params={"project": self._project_id}, json=bucket_config)
        except GcsError as error:
            if error.status != 409:
                raise
            if not self.exists(bucket):  # it belongs to another project
                raise _not_accessible(bucket) from error
            return False
        return True

    @property
    def _project_id(self) -> str:
        project = self._project or self._credentials.project
        if project is None:
            raise StorageError("no project for new buckets is configured", fix="set gcs.project in config.yaml")
        return project

    def exists(self, bucket: str) -> bool:
        check_bucket_name(bucket, store=self.name)
        return self._describe(bucket) is not None

    def _describe(self, bucket: str) -> Mapping[str, Any] | None:
        """The bucket's metadata; None if there is none."""
        try:
            return self._call("GET", f"/storage/v1/b/{bucket}", params={"fields": _BUCKET_FIELDS})
        except GcsError as error:
            if error.status == 404:
                return None
            if error.status == 403:
                raise _not_accessible(bucket) from error
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
            with ThreadPoolExecutor(_DELETE_THREADS) as pool:
                for page in self._versions(bucket):
                    for _ in pool.map(lambda version: self._delete(bucket, version), page):
                        pass
            self._call("DELETE", f"/storage/v1/b/{bucket}")
        except GcsError as error:
            if error.status != 404:
                raise

    def _versions(self, bucket: str) -> Iterator[list[Mapping[str, str]]]:
        """Every object with all of its versions, in pages."""
        params = {"versions": "true", "fields": "items(name,generation),nextPageToken"}
        while True:
            page = self._call("GET", f"/storage/v1/b/{bucket}/o", params=params)
            yield page.get("items", [])
            if "nextPageToken" not in page:
                return
            params["pageToken"] = page["nextPageToken"]

    def _delete(self, bucket: str, version: Mapping[str, str]) -> None:
        path = f"/storage/v1/b/{bucket}/o/{quote(version['name'], safe='')}"
        try:
            self._call("DELETE", path, params={"generation": version["generation"]})
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
        # For a removed bucket, the node reports a failed mount. Without a spec it would wait forever.
        metadata = self._describe(bucket) or {}
        uniform = metadata.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled", True)
        token = self._credentials.token_for(bucket, writes=access.writes, is_uniform=uniform, prefix=access.prefix)
        return {**remote, "access_token": token.value, "expires_at": token.expires_at}

    def classify(self, error: Exception) -> Fault:
        code = getattr(error, "reason", None) if isinstance(error, GcsError) else type(error).__name__
        kind, reason = _FAULTS.get(str(code)) or _by_status(error)
        if getattr(error, "retryable", False):  # as google-auth classifies errors of the token server
            kind, reason = FaultKind.RETRY_LATER, Reason.THROTTLED
        retry_after_s = RETRY_AFTER_S if kind is FaultKind.RETRY_LATER else None
        return Fault(kind, reason, str(code), str(error), retry_after_s)

    def _call(self, method: str, path: str, **parts: Any) -> Mapping[str, Any]:
        """The JSON of the response; {} if it is empty. Raises GcsError, and errors of requests and google-auth."""
        url = (self.endpoint or PUBLIC_URL) + path
        session = self._credentials.session
        response = session.request(method, url, timeout=_TIMEOUTS_S, **parts)  # type: ignore[no-untyped-call]
        if response.status_code >= 300:
            raise _error(response)
        content: Mapping[str, Any] = response.json() if response.content else {}
        return content


def _error(response: Response) -> GcsError:
    try:
        error = response.json()["error"]
        reason = error["errors"][0]["reason"]
    except (ValueError, KeyError, IndexError, TypeError):
        return GcsError(response.status_code, response.reason or "", response.text[:500])
    return GcsError(response.status_code, reason, error.get("message", ""))


def _not_accessible(bucket: str) -> StorageError:
    return StorageError(
        f"bucket {bucket} exists, but these credentials may not use it",
        fix="choose another name (Google's names are shared by all projects), or allow what "
        "deploy/iam/gcp-controller.yaml lists",
    )


def _by_status(error: Exception) -> tuple[FaultKind, Reason]:
    """The same call may succeed later if there was no response (a broken connection), or a server error."""
    if isinstance(error, GcsError):
        if error.status >= 500 or error.status in (408, 429):
            return FaultKind.RETRY_LATER, Reason.THROTTLED
        return FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS if error.status in (401, 403) else Reason.BAD_REQUEST
    if type(error).__module__.startswith(("requests", "urllib3", "google.auth")) or isinstance(error, OSError):
        return FaultKind.RETRY_LATER, Reason.THROTTLED
    return FaultKind.GIVE_UP, Reason.BAD_REQUEST
