"""Clients of Azure's Resource Manager and Storage, created on first use. They try each call once: retries are the
caller's.

The SDK's default pipeline retries calls and registers missing resource providers, sleeping in between. This one does
neither.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.runtime.clock import Clock
from perdure.sdk.connection.installation import install_command

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential
    from azure.mgmt.compute import ComputeManagementClient

PUBLIC_URL = "https://management.azure.com"
PRICES_URL = "https://prices.azure.com"
STORAGE_SCOPE = "https://storage.azure.com/.default"
CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 30.0
CREDENTIALS_RETRY_S = 30.0


class AzureConnections:
    """Thread-safe: clients are, and their creation is locked."""

    def __init__(self, settings: AzureSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._compute_client: ComputeManagementClient | None = None
        self._storage: PipelineClient[Any, Any] | None = None
        self._price_list: PipelineClient[Any, Any] | None = None
        self._credential: TokenCredential | None = None
        self._problem: str | None = None
        self._checked_at: float | None = None
        self._has_credentials = False

    @property
    def subscription(self) -> str:
        return self._settings.subscription or os.environ.get("AZURE_SUBSCRIPTION_ID", "")

    def client(self) -> ComputeManagementClient:
        with self._lock:
            if self._compute_client is None:
                self._compute_client = self._create_compute_client()
            return self._compute_client

    def call(self, method: str, path: str, api_version: str, body: object = None) -> Any:
        """Call Resource Manager. Returns the response's JSON, None if it is empty. Raises azure's HttpResponseError."""
        from azure.core.exceptions import HttpResponseError, map_error
        from azure.core.rest import HttpRequest
        from azure.mgmt.core.exceptions import ARMErrorFormat

        request = HttpRequest(method, path, params={"api-version": api_version}, json=body)
        response = self.client().send_request(request)
        if response.status_code >= 400:
            map_error(response.status_code, response, {})
            raise HttpResponseError(response=response, error_format=ARMErrorFormat)
        return response.json() if response.content else None

    def find(self, path: str, api_version: str) -> dict[str, Any] | None:
        """The resource; None if it does not exist. Raises azure's HttpResponseError."""
        try:
            resource: dict[str, Any] = self.call("GET", path, api_version)
        except Exception as error:
            if not faults.is_not_found(error):
                raise
            return None
        return resource

    def storage(self) -> PipelineClient[Any, Any]:
        """A client for calls of Storage by complete URLs. It does not raise for any status of a response."""
        from azure.core import PipelineClient
        from azure.core.pipeline import policies

        with self._lock:
            if self._storage is None:
                signing = policies.BearerTokenCredentialPolicy(self._get_credential(), STORAGE_SCOPE)
                self._storage = PipelineClient("", policies=[*_plain_policies(), signing], transport=self._transport())
            return self._storage

    def prices(self, url: str, query: Mapping[str, str] | None) -> Any:
        """Call the list of retail prices, without credentials. `url`: a path, or the next page of a response.

        Raises azure's HttpResponseError.
        """
        from azure.core.exceptions import HttpResponseError
        from azure.core.rest import HttpRequest

        with self._lock:
            if self._price_list is None:
                self._price_list = self._make_price_list()
        whole = f"{self._prices_url}{url}" if url.startswith("/") else url
        response = self._price_list.send_request(HttpRequest("GET", whole, params=query))
        if response.status_code >= 400:
            raise HttpResponseError(response=response)
        return response.json()

    def read_signed(self, url: str) -> str:
        """The text at a URL that contains its own signature; no credentials are sent. Raises HttpResponseError."""
        from azure.core.exceptions import HttpResponseError
        from azure.core.rest import HttpRequest

        with self._lock:
            if self._price_list is None:
                self._price_list = self._make_price_list()
        response = self._price_list.send_request(HttpRequest("GET", url))
        if response.status_code >= 400:
            raise HttpResponseError(response=response)
        content: bytes = response.content
        return content.decode(errors="replace")

    def token(self) -> str:
        """An access token for Resource Manager. Raises azure's ClientAuthenticationError."""
        with self._lock:
            credential = self._get_credential()
        return credential.get_token(self._scope).token

    def unusable(self) -> str | None:
        """Why no call can succeed, and what to do. Searches for credentials periodically until there are some."""
        for module in ("azure.mgmt.compute", "azure.identity"):
            if not _is_installed(module):
                return f"{module} is not installed; run: {install_command('azure')}"
        if not self.subscription:
            return "no subscription is configured: set azure.subscription in config.yaml, or AZURE_SUBSCRIPTION_ID"
        with self._lock:
            now = self._clock.now()
            if not self._has_credentials and (
                self._checked_at is None or now - self._checked_at >= CREDENTIALS_RETRY_S
            ):
                self._checked_at = now
                self._problem = self._find_credentials_problem()
                self._has_credentials = self._problem is None
            return self._problem

    def _find_credentials_problem(self) -> str | None:
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

        try:
            self._get_credential().get_token(self._scope)
        except ClientAuthenticationError as error:
            self._credential = None  # the next check reads the environment again
            if "AADSTS" in str(error):  # the identity service has rejected them
                return f"Azure rejects the credentials: {_rejection(error)}"
            return (
                "no Azure credentials were found: set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, run "
                "`az login`, or give this machine a managed identity"
            )
        except ServiceRequestError:
            return None  # the first call will show whether they are valid
        return None

    def _get_credential(self) -> TokenCredential:
        if self._credential is None:
            # With a private endpoint and authority, do not query Microsoft about them.
            is_private = self._settings.endpoint_url is not None
            self._credential = find_credential(disable_instance_discovery=is_private, **self._tls)
        return self._credential

    @property
    def _prices_url(self) -> str:
        return (self._settings.prices_url or PRICES_URL).rstrip("/")

    @property
    def _scope(self) -> str:
        return f"{(self._settings.endpoint_url or PUBLIC_URL).rstrip('/')}/.default"

    @property
    def _tls(self) -> dict[str, Any]:
        return {"connection_verify": self._settings.ca_file} if self._settings.ca_file else {}

    def _make_price_list(self) -> PipelineClient[Any, Any]:
        from azure.core import PipelineClient
        from azure.core.pipeline import policies
        from azure.core.pipeline.transport import RequestsTransport

        trust = self._tls if self._settings.prices_url else {}
        transport = RequestsTransport(connection_timeout=CONNECT_TIMEOUT_S, read_timeout=RESPONSE_TIMEOUT_S, **trust)
        named = [policies.UserAgentPolicy(base_user_agent="perdure"), policies.ProxyPolicy()]
        return PipelineClient(self._prices_url, transport=transport, policies=[*named, policies.ContentDecodePolicy()])

    def _create_compute_client(self) -> ComputeManagementClient:
        from azure.core.pipeline.policies import ContentDecodePolicy
        from azure.mgmt.compute import ComputeManagementClient
        from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

        signing = ARMChallengeAuthenticationPolicy(self._get_credential(), self._scope)
        return ComputeManagementClient(
            self._get_credential(),
            self.subscription,
            base_url=self._settings.endpoint_url or PUBLIC_URL,
            transport=self._transport(),
            policies=[*_plain_policies(), ContentDecodePolicy(), signing],
        )

    def _transport(self) -> Any:
        from azure.core.pipeline.transport import RequestsTransport

        return RequestsTransport(connection_timeout=CONNECT_TIMEOUT_S, read_timeout=RESPONSE_TIMEOUT_S, **self._tls)


def _plain_policies() -> list[Any]:
    from azure.core.pipeline import policies

    return [
        policies.RequestIdPolicy(),
        policies.HeadersPolicy(),
        policies.UserAgentPolicy(base_user_agent="perdure"),
        policies.ProxyPolicy(),
    ]


def find_credential(**options: Any) -> TokenCredential:
    """The credential of the environment, of the workload's or machine's identity, or of `az login`.

    `options`: the SDK's.
    """
    from azure.identity import DefaultAzureCredential

    # Without credentials it logs long warnings; the error that it raises is enough.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    return DefaultAzureCredential(
        exclude_shared_token_cache_credential=True,
        exclude_visual_studio_code_credential=True,
        exclude_powershell_credential=True,
        exclude_developer_cli_credential=True,
        exclude_broker_credential=True,
        retry_total=0,
        **options,
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _rejection(error: Exception) -> str:
    line = next(line for line in str(error).splitlines() if "AADSTS" in line)
    return line[line.index("AADSTS") :].rstrip(" .")
