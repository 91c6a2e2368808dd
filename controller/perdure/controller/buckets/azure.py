"""Containers of Azure Blob Storage. Azure's libraries are imported when a container is first used.

The full name of a container here is `account/container`. Storage accounts are never created.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from perdure.controller.buckets.stores import (
    ANYWHERE,
    RETRY_AFTER_S,
    Access,
    StorageError,
    check_bucket_name,
    check_key,
)
from perdure.controller.clouds.azure.sdk.connections import find_credential
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from perdure.sdk.connection.installation import install_command

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.storage.blob import BlobServiceClient, ContainerClient

_CONNECT_S, _READ_S = 5, 60
# Azure signs for seven days at most ("Get User Delegation Key"), and a mount cannot get a new signature.
_SIGNATURE_LIFETIME_S, _DELEGATION_KEY_MAX_AGE_S = 7 * 86_400 - 3600, 86_400
_CLOCK_SKEW_S = 900  # Azure's advice on clocks that differ

# Azure's error code → (what the caller does next, reason). Other codes: by the HTTP status.
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
    """A storage account that is in use."""

    client: BlobServiceClient
    delegation_key: Any = None  # signs for nodes if the account's own key is unknown
    delegated_at: float = 0.0  # epoch seconds


class AzureStore:
    """Containers of any storage account that the credentials may use.

    A node in Azure that has the managed identity `node_identity` uses that. Other nodes get a signature that is valid
    only for their container, for nearly six days (seven, if the account's key signs it).
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
        """`clock`: wall-clock time. `account`: of containers for which a task gives only a name.

        `endpoint`: of that account, if not Azure's public one. `account_key`: its key; None: `credential` is used.
        """
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
        key = self._account_key_for(account)
        signing = {"account_key": key} if key else {"user_delegation_key": self._delegation(account, now)}
        ends_at = now + _SIGNATURE_LIFETIME_S - (0 if key else _DELEGATION_KEY_MAX_AGE_S)
        rights = ContainerSasPermissions(read=True, list=True, add=writes, create=writes, write=writes, delete=writes)
        signed = generate_container_sas(
            account, container, permission=rights, start=_utc(now - _CLOCK_SKEW_S), expiry=_utc(ends_at), **signing
        )
        return str(signed)

    def _delegation(self, account: str, now: float) -> Any:
        """A user delegation key, which signs on behalf of these credentials; at most a day old."""
        with self._lock:
            state = self._accounts[account]
            if state.delegation_key is None or now - state.delegated_at > _DELEGATION_KEY_MAX_AGE_S:
                key = state.client.get_user_delegation_key(_utc(now - _CLOCK_SKEW_S), _utc(now + _SIGNATURE_LIFETIME_S))
                state = self._accounts[account] = _Account(state.client, key, now)
            return state.delegation_key

    def _container(self, bucket: str) -> ContainerClient:
        """Raises StorageError for a name that Azure would reject."""
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
            what = "Azure's containers need azure-storage-blob"
            raise StorageError(what, fix=f"run: {install_command('azure')}") from error
        has_endpoint = self._endpoint is not None and account == self.account
        return BlobServiceClient(
            self._endpoint if has_endpoint and self._endpoint else f"https://{account}.blob.core.windows.net",
            self._shared_key(account) or self._credential(),
            retry_total=0,  # retries are the caller's task
            connection_timeout=_CONNECT_S,
            read_timeout=_READ_S,
        )

    def _account_key_for(self, account: str) -> str | None:
        return self._account_key if account == self.account else None

    def _shared_key(self, account: str) -> Any:
        """The key with its account's name, which the client cannot derive from a custom endpoint."""
        key = self._account_key_for(account)
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
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _first_line(error: Exception) -> str:
    """The message without the request's id and time, which follow it."""
    return str(error).partition("\n")[0]


def _by_status(error: Exception) -> tuple[FaultKind, Reason]:
    """The same call may succeed later if there was no response (a broken connection), or a server error."""
    status = getattr(error, "status_code", None)
    if status is None:
        is_transient = type(error).__module__.startswith("azure.core") or isinstance(error, OSError)
    else:
        is_transient = status >= 500 or status in (408, 429)
    if is_transient:
        return FaultKind.RETRY_LATER, Reason.THROTTLED
    return FaultKind.GIVE_UP, Reason.BAD_CREDENTIALS if status in (401, 403) else Reason.BAD_REQUEST
