"""Buckets in S3, or in an S3-compatible store (`endpoint`). boto3 is imported when a bucket is first used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from perdure.controller.buckets.s3_credentials import S3NodeCredentials
from perdure.controller.buckets.stores import (
    ANYWHERE,
    RETRY_AFTER_S,
    Access,
    StorageError,
    check_bucket_name,
    check_key,
)
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.runtime.clock import Clock, SystemClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from perdure.sdk.connection.installation import install_command

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.client import Config
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

DEFAULT_REGION = "us-east-1"
_NOT_FOUND = frozenset({"404", "NoSuchBucket", "NotFound"})
_FORBIDDEN = frozenset({"403", "AccessDenied", "Forbidden"})

# S3's error code → (what the caller does next, reason). Other codes: by the HTTP status.
_FAULTS: dict[str, tuple[FaultKind, Reason]] = {
    "SlowDown": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "Throttling": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "RequestLimitExceeded": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "RequestTimeout": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "OperationAborted": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "BucketNotEmpty": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "TooManyBuckets": (FaultKind.GIVE_UP, Reason.QUOTA),
    "AccessDenied": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "InvalidAccessKeyId": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "SignatureDoesNotMatch": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "ExpiredToken": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "InvalidToken": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "NoCredentialsError": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "ProfileNotFound": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
}


class S3Store:
    """Buckets of one S3 endpoint.

    Credentials are those of the default chain, or of `profile`, in `credentials_file` if given. Nodes of AWS's
    buckets get temporary ones for their bucket and prefix. Other servers have no such service: the keys of their
    bucket are part of a node's spec. A controller with a role and without `node_role` gives none: a node uses those
    of its own machine (`env_auth`), which needs a role as well.
    """

    def __init__(
        self,
        *,
        name: str = "s3",
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        credentials_file: Path | None = None,
        provider: str = "Other",
        node_role: str | None = None,
        sts_endpoint: str | None = None,
        share_keys: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """`endpoint` None: that of AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or AWS. `region` None: that of the chain.

        `provider`: rclone's name for the provider of the endpoint. `node_role`: the role that nodes get.
        `sts_endpoint`: the Security Token Service that goes with `endpoint`. `share_keys`: nodes get the controller's
        keys. `clock`: wall-clock time; None: this computer's.
        """
        self.name = name
        variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        self.endpoint = endpoint or next((os.environ[name] for name in variables if os.environ.get(name)), None)
        self._configured_region = region
        self._profile = profile
        self._credentials_file = credentials_file
        self._provider = provider
        self._regions: dict[str, str] = {}
        self._node_role = node_role
        self._sts_endpoint = sts_endpoint
        self._share_keys = share_keys
        self._for_nodes = S3NodeCredentials(self._sts_client, node_role, (clock or SystemClock()).now)

    def _sts_client(self) -> Any:
        return self._session.client("sts", endpoint_url=self._sts_endpoint, region_name=self.region)

    @cached_property
    def _session(self) -> Session:
        try:
            import boto3  # slow to import, and optional
            import botocore.session
        except ModuleNotFoundError as error:
            raise StorageError("S3 buckets need boto3", fix=f"run: {install_command('aws')}") from error
        core = botocore.session.Session(profile=self._profile)
        if self._credentials_file is not None:
            core.set_config_variable("credentials_file", str(self._credentials_file))
        return boto3.session.Session(botocore_session=core)

    @cached_property
    def _client(self) -> S3Client:
        from botocore.client import Config

        # Only AWS supports the newest checksums; other servers reject them.
        checksums: Literal["when_required", "when_supported"] = "when_required" if self.endpoint else "when_supported"
        config: Config = Config(
            connect_timeout=5,
            read_timeout=15,
            retries={"mode": "standard", "total_max_attempts": 2},
            request_checksum_calculation=checksums,
            response_checksum_validation=checksums,
        )
        return self._session.client("s3", endpoint_url=self.endpoint, region_name=self.region, config=config)

    @property
    def region(self) -> str:
        """The region of new buckets."""
        return self._configured_region or self._session.region_name or DEFAULT_REGION

    def ensure(self, bucket: str) -> bool:
        check_bucket_name(bucket)
        if self.exists(bucket):
            return False
        try:
            if self.region == DEFAULT_REGION:  # S3 rejects its default region as a constraint
                self._client.create_bucket(Bucket=bucket)
            else:
                place: Any = {"LocationConstraint": self.region}
                self._client.create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
        except self._client.exceptions.BucketAlreadyOwnedByYou:
            return False
        except self._client.exceptions.BucketAlreadyExists as error:
            raise _not_accessible(bucket) from error
        return True

    def exists(self, bucket: str) -> bool:
        check_bucket_name(bucket)
        try:
            response = self._client.head_bucket(Bucket=bucket)
        except self._client.exceptions.ClientError as error:
            code = _code(error)
            if code in _NOT_FOUND:
                return False
            if code in _FORBIDDEN:
                raise _not_accessible(bucket) from error
            raise
        headers = response["ResponseMetadata"]["HTTPHeaders"]
        self._regions[bucket] = headers.get("x-amz-bucket-region") or self.region
        return True

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        check_bucket_name(bucket)
        check_key(key)
        self._client.upload_fileobj(body, bucket, key)

    def remove(self, bucket: str) -> None:
        check_bucket_name(bucket)
        try:
            try:
                self._empty_of_versions(bucket)
            except self._client.exceptions.ClientError as error:
                if _code(error) != "NotImplemented":
                    raise
                self._empty(bucket)  # a server without versions
            self._client.delete_bucket(Bucket=bucket)
        except self._client.exceptions.ClientError as error:
            if _code(error) not in _NOT_FOUND:
                raise

    def _empty_of_versions(self, bucket: str) -> None:
        for page in self._client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            versions = [
                *page.get("Versions", []),
                *page.get("DeleteMarkers", []),
            ]  # at most 1000, the limit of a deletion
            self._delete(bucket, [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in versions])

    def _empty(self, bucket: str) -> None:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            self._delete(bucket, [{"Key": item["Key"]} for item in page.get("Contents", [])])

    def _delete(self, bucket: str, objects: Sequence[ObjectIdentifierTypeDef]) -> None:
        if not objects:
            return
        response = self._client.delete_objects(Bucket=bucket, Delete={"Objects": list(objects), "Quiet": True})
        if errors := response.get("Errors"):
            first = errors[0]
            raise StorageError(
                f"{len(errors)} objects of bucket {bucket} could not be removed, including {first.get('Key')}: "
                f"{first.get('Code')} {first.get('Message')}",
                fix="allow s3:DeleteObject and s3:DeleteObjectVersion",
            )

    def rclone_remote(self, bucket: str, access: Access = ANYWHERE, /) -> dict[str, object]:
        if bucket not in self._regions:
            self.exists(bucket)
        # For a removed bucket, the node reports a failed mount. Without a spec it would wait forever.
        region = self._regions.get(bucket, self.region)
        remote: dict[str, object] = {"type": "s3", "region": region, **self._credentials(bucket, access)}
        if self.endpoint is None:
            return {**remote, "provider": "AWS"}
        return {**remote, "provider": self._provider, "endpoint": self.endpoint, "force_path_style": True}

    def _credentials(self, bucket: str, access: Access) -> dict[str, object]:
        from botocore.credentials import RefreshableCredentials

        credentials = self._session.get_credentials()
        if credentials is None:
            raise StorageError(
                f"there are no credentials for {self.name} buckets",
                fix="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile that has them",
            )
        has_own_role = isinstance(credentials, RefreshableCredentials)
        has_token_service = self.endpoint is None or self._sts_endpoint is not None
        can_make_keys = has_token_service and (self._node_role is not None or not has_own_role)
        if can_make_keys and not access.is_controller and not self._share_keys:
            return self._for_nodes.keys_for(bucket, access).to_rclone()
        if has_own_role:
            return {"env_auth": True}
        keys = credentials.get_frozen_credentials()
        token = {"session_token": keys.token} if keys.token else {}
        return {"env_auth": False, "access_key_id": keys.access_key, "secret_access_key": keys.secret_key, **token}

    def classify(self, error: Exception) -> Fault:
        if isinstance(error, StorageError):
            return Fault(FaultKind.GIVE_UP, Reason.BAD_REQUEST, "StorageError", str(error))
        code = _code(error) or type(error).__name__
        kind, reason = _FAULTS.get(code) or _by_status(error)
        retry_after_s = RETRY_AFTER_S if kind is FaultKind.RETRY_LATER else None
        return Fault(kind, reason, code, str(error), retry_after_s)


def _not_accessible(bucket: str) -> StorageError:
    return StorageError(
        f"bucket {bucket} exists, but these credentials may not use it",
        fix="choose another name (S3 names are shared by all accounts), or ask its owner for access",
    )


def _response(error: Exception) -> dict[str, Any]:
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _code(error: Exception) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def _by_status(error: Exception) -> tuple[FaultKind, Reason]:
    """The same call may succeed later if there was no response (a broken connection), or a server error."""
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is None:
        is_transient = type(error).__module__.startswith(("botocore", "urllib3", "s3transfer")) or isinstance(
            error, OSError
        )
    else:
        is_transient = status >= 500 or status == 429
    if is_transient:
        return FaultKind.RETRY_LATER, Reason.THROTTLED
    return FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS if status in (401, 403) else Reason.BAD_REQUEST
