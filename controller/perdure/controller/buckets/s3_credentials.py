"""Credentials of S3 for nodes: temporary ones of AWS's Security Token Service, for one bucket and prefix.

A session policy bounds them, whatever the controller itself may do: docs.aws.amazon.com/IAM/latest/UserGuide,
"Session policies". A user's keys become those of a federated user (GetFederationToken), and with `role` those of that
role (AssumeRole). A role's own credentials cannot make others without a role.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.buckets.stores import Access, StorageError

LIFETIME_S = 12 * 3600
ROLE_LIFETIME_S = 3600  # what every role allows, and the most for a controller that has a role itself
_SESSION = "perdure-node"
_READING = ("s3:GetObject",)
_WRITING = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


@dataclass(frozen=True)
class NodeKeys:
    """Temporary keys. `expires_at`: epoch seconds."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: float

    def to_rclone(self) -> dict[str, object]:
        """As in a node spec: the agent serves the keys to rclone, and renews them."""
        keys = {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "session_token": self.session_token,
        }
        return {"env_auth": True, "credentials": keys, "expires_at": self.expires_at}


class S3NodeCredentials:
    """Makes the keys of nodes, and keeps them for the next node while most of their life is left. Thread-safe.

    `client`: makes the client of the service. `role`: the ARN of the role that nodes get, or None. `now`: epoch s.
    """

    def __init__(self, client: Callable[[], Any], role: str | None, now: Callable[[], float]) -> None:
        self._make_client = client
        self._role = role
        self._now = now
        self._lock = threading.Lock()
        self._client: Any = None
        self._lifetime_s = LIFETIME_S
        self._keys: dict[tuple[str, str, bool], NodeKeys] = {}

    def keys_for(self, bucket: str, access: Access) -> NodeKeys:
        """Keys for the bucket below the prefix, valid for at least half of what AWS gives. Raises StorageError."""
        key = (bucket, access.prefix, access.writes)
        with self._lock:
            keys = self._keys.get(key)
            if keys is None or keys.expires_at - self._now() < self._lifetime_s / 2:
                keys = self._keys[key] = self._request(policy(bucket, access.prefix, writes=access.writes))
            return keys

    def _request(self, policy: dict[str, Any]) -> NodeKeys:
        from botocore.exceptions import ClientError

        if self._client is None:
            self._client = self._make_client()
        try:
            response = self._call(self._client, json.dumps(policy, separators=(",", ":")))
        except ClientError as error:
            details = error.response.get("Error", {})
            if details.get("Code") not in ("AccessDenied", "AccessDeniedException"):
                raise
            action = "sts:AssumeRole on s3.node_role" if self._role else "sts:GetFederationToken"
            raise StorageError(
                f"machines get credentials for their bucket alone, which {action} makes: {details.get('Message')}",
                where="s3",
                fix=f"allow the controller {action} (deploy/iam/aws-controller.json), or, to give every machine the "
                "controller's own keys, set s3.share_keys: true in config.yaml",
            ) from None
        made = response["Credentials"]
        expires_at = made["Expiration"].timestamp()
        return NodeKeys(made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"], expires_at)

    def _call(self, client: Any, policy: str) -> Any:
        if self._role is None:
            return client.get_federation_token(Name=_SESSION, Policy=policy, DurationSeconds=self._lifetime_s)
        request: Any = {"RoleArn": self._role, "RoleSessionName": _SESSION, "Policy": policy}
        try:
            return client.assume_role(**request, DurationSeconds=self._lifetime_s)
        except client.exceptions.ClientError as error:
            # The role, or the chain of roles, allows less than twelve hours.
            if error.response.get("Error", {}).get("Code") != "ValidationError" or self._lifetime_s == ROLE_LIFETIME_S:
                raise
            self._lifetime_s = ROLE_LIFETIME_S
            return client.assume_role(**request, DurationSeconds=self._lifetime_s)


def policy(bucket: str, prefix: str, *, writes: bool) -> dict[str, Any]:
    """The session policy of a node that mounts `bucket` below `prefix`; an empty prefix is the whole bucket."""
    arn, below = f"arn:aws:s3:::{bucket}", prefix.strip("/")
    listing: dict[str, Any] = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [arn]}
    if below:
        listing["Condition"] = {"StringLike": {"s3:prefix": [below, f"{below}/*"]}}
    objects = [f"{arn}/{below}", f"{arn}/{below}/*"] if below else [f"{arn}/*"]
    about = {"Effect": "Allow", "Action": ["s3:GetBucketLocation"], "Resource": [arn]}
    actions = [*_READING, *(_WRITING if writes else ())]
    return {
        "Version": "2012-10-17",
        "Statement": [listing, about, {"Effect": "Allow", "Action": actions, "Resource": objects}],
    }
