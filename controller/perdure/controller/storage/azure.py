"""Containers of Azure Blob Storage. Azure's libraries are imported when one is first needed.

A container is named `account/container` here. Accounts are not made: who has one says which.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from perdure.controller.clock import Clock
from perdure.controller.clouds.azure.connections import find_credential
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
    from azure.core.credentials import TokenCredential
    from azure.storage.blob import BlobServiceClient, ContainerClient

_CONNECT_S, _READ_S = 5, 60
# Azure signs for seven days at most ("Get User Delegation Key"), and a mount can not be told of a new signature.
_SIGNED_FOR_S, _SIGNED_AGAIN_AFTER_S = 7 * 86_400 - 3600, 86_400
_SKEW_S = 900  # Azure's advice on clocks that differ

# Azure's error code → (what the caller does next, reason). Codes that are not here: by the HTTP status.
_FAULTS: dict[str, tuple[FaultKind, Reason]] = {
    "ContainerBeingDeleted": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "ServerBusy": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "OperationTimedOut": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "InternalError": (FaultKind.RETRY_LATER, Reason.THROTTLED),
    "StorageError": (FaultKind.GIVE_UP, Reason.BAD_REQUEST),
    "ClientAuthenticationError": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
    "CredentialUnavailableError": (FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS),
}


@dataclass(frozen=True)
class _Account:
    """`delegation`: what signs for nodes, where no key of the account does; made at `delegated_at` (epoch seconds)."""

    client: BlobServiceClient
    delegation: Any = None
    delegated_at: float = 0.0


class AzureStore:
    """`account`: the one of containers that are only named. `endpoint`: where that one answers, if not at Azure's own.
    `account_key`: its key; None: credentials as `find_credential` finds them. `clock`: the world's time.

    A node of Azure's that has the managed identity `node_identity` uses that. Others are given a signature that is good
    for their container alone, for nearly six days (seven, where it is made of the account's key).
    """

    name = "azure"

    def __init__(
        self,
        clock: Clock,
        *,
        account: str | None = None,
        endpoint: str | None = None,
        account_key: str | None = None,
        node_identity: str | None = None,
        credential: Callable[[], TokenCredential] = find_credential,
    ) -> None:
        self.account = account
        self._clock = clock
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._account_key = account_key
        self._node_identity = node_identity
        self._credential = credential
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def ensure(self, bucket: str) -> bool:
        container = self._container(bucket)
        if self.exists(bucket):
            return False
        from azure.core.exceptions import HttpResponseError

        try:
            container.create_container()
        except HttpResponseError as error:
            if _code(error) == "ContainerAlreadyExists":
                return False
            raise
        return True

    def exists(self, bucket: str) -> bool:
        container = self._container(bucket)
        from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError

        try:
            container.get_container_properties()
        except ResourceNotFoundError:
            return False
        except ClientAuthenticationError as error:
            if error.status_code is not None:
                raise
            raise StorageError(
                "no Azure credentials were found",
                fix="set AZURE_STORAGE_KEY (of azure_blob.account), or AZURE_TENANT_ID, AZURE_CLIENT_ID and "
                "AZURE_CLIENT_SECRET, run `az login`, or give the controller's machine a managed identity",
            ) from error
        except HttpResponseError as error:
            if error.status_code != 403:
                raise
            raise StorageError(
                f"these credentials may not use container {bucket}: {_code(error)}",
                fix="allow what deploy/iam/azure-controller.json lists, or correct the names of account and container",
            ) from error
        return True

    def put(self, bucket: str, key: str, body: IO[bytes]) -> None:
        container = self._container(bucket)
        check_key(key)
        container.upload_blob(key, body, overwrite=True)

    def remove(self, bucket: str) -> None:
        container = self._container(bucket)
        from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

        try:
            container.delete_container()
        except ResourceNotFoundError:
            return
        except HttpResponseError as error:
            if _code(error) != "ContainerBeingDeleted":
                raise

    def rclone_remote(self, bucket: str, access: Access = ANYWHERE, /) -> dict[str, object]:
        container = self._container(bucket)
        account, _, name = bucket.partition("/")
        remote: dict[str, object] = {"type": "azureblob"}
        if access.cloud == "azure" and self._node_identity is not None:
            remote |= {"account": account, "use_msi": True, "msi_mi_res_id": self._node_identity}
            return remote if container.url == _public_url(account, name) else {**remote, "endpoint": self._endpoint}
        return {**remote, "sas_url": f"{container.url}?{self._signature(account, name, writes=access.writes)}"}

    def _signature(self, account: str, container: str, *, writes: bool) -> str:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        now = self._clock.now()
        key = self._key_of(account)
        signing = {"account_key": key} if key else {"user_delegation_key": self._delegation(account, now)}
        ends_at = now + _SIGNED_FOR_S - (0 if key else _SIGNED_AGAIN_AFTER_S)
        rights = ContainerSasPermissions(read=True, list=True, add=writes, create=writes, write=writes, delete=writes)
        signed = generate_container_sas(
            account, container, permission=rights, start=_utc(now - _SKEW_S), expiry=_utc(ends_at), **signing
        )
        return str(signed)

    def _delegation(self, account: str, now: float) -> Any:
        """Azure's own key for signing on behalf of these credentials; at most a day old."""
        with self._lock:
            known = self._accounts[account]
            if known.delegation is None or now - known.delegated_at > _SIGNED_AGAIN_AFTER_S:
                key = known.client.get_user_delegation_key(_utc(now - _SKEW_S), _utc(now + _SIGNED_FOR_S))
                known = self._accounts[account] = _Account(known.client, key, now)
            return known.delegation

    def _container(self, bucket: str) -> ContainerClient:
        """Raises StorageError for a name that Azure would refuse."""
        check_bucket_name(bucket, store=self.name)
        account, _, container = bucket.partition("/")
        with self._lock:
            if account not in self._accounts:
                self._accounts[account] = _Account(self._connect(account))
            return self._accounts[account].client.get_container_client(container)

    def _connect(self, account: str) -> BlobServiceClient:
        try:
            from azure.storage.blob import BlobServiceClient
        except ModuleNotFoundError as error:
            raise StorageError("Azure's containers need azure-storage-blob", fix="install perdure[azure]") from error
        is_other = self._endpoint is not None and account == self.account
        return BlobServiceClient(
            self._endpoint if is_other and self._endpoint else f"https://{account}.blob.core.windows.net",
            self._named_key(account) or self._credential(),
            retry_total=0,  # the caller repeats, as data
            connection_timeout=_CONNECT_S,
            read_timeout=_READ_S,
        )

    def _key_of(self, account: str) -> str | None:
        return self._account_key if account == self.account else None

    def _named_key(self, account: str) -> Any:
        """A key is told with its account's name, which an endpoint of another form would not give away."""
        key = self._key_of(account)
        return {"account_name": account, "account_key": key} if key else None

    def classify(self, error: Exception) -> Fault:
        code = _code(error) or type(error).__name__
        kind, reason = _FAULTS.get(code) or _by_status(error)
        retry_after_s = RETRY_AFTER_S if kind is FaultKind.RETRY_LATER else None
        return Fault(kind, reason, code, _first_line(error), retry_after_s)


def _public_url(account: str, container: str) -> str:
    return f"https://{account}.blob.core.windows.net/{container}"


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


def _code(error: Exception) -> str:
    found = getattr(error, "error_code", None)
    return str(getattr(found, "value", found) or "")


def _first_line(error: Exception) -> str:
    """What follows are the request's id and time."""
    return str(error).partition("\n")[0]


def _by_status(error: Exception) -> tuple[FaultKind, Reason]:
    """Without an answer (a broken connection), or with a server's error, the same call may work later."""
    status = getattr(error, "status_code", None)
    if status is None:
        passes = type(error).__module__.startswith("azure.core") or isinstance(error, OSError)
    else:
        passes = status >= 500 or status in (408, 429)
    if passes:
        return FaultKind.RETRY_LATER, Reason.THROTTLED
    return FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS if status in (401, 403) else Reason.BAD_REQUEST
