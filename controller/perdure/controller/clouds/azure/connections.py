"""Clients of Azure's Resource Manager and of Storage, made when first used. One attempt per call: the caller repeats,
as data.

The SDK's own pipeline would repeat calls, and register resource providers where one is missing, sleeping in between.
Ours has neither.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.controller.clock import Clock
from perdure.controller.clouds.azure import faults
from perdure.controller.clouds.azure.settings import AzureSettings

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential
    from azure.mgmt.compute import ComputeManagementClient

PUBLIC_URL = "https://management.azure.com"
PRICES_URL = "https://prices.azure.com"
STORAGE_SCOPE = "https://storage.azure.com/.default"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
LOOK_FOR_CREDENTIALS_AGAIN_S = 30.0


class Connections:
    """Shared by threads: clients may be, and making one is locked."""

    def __init__(self, settings: AzureSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._made: ComputeManagementClient | None = None
        self._storage: PipelineClient[Any, Any] | None = None
        self._price_list: PipelineClient[Any, Any] | None = None
        self._credential: TokenCredential | None = None
        self._problem: str | None = None
        self._looked_at: float | None = None
        self._has_credentials = False

    @property
    def subscription(self) -> str:
        return self._settings.subscription or os.environ.get("AZURE_SUBSCRIPTION_ID", "")

    def client(self) -> ComputeManagementClient:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def call(self, method: str, path: str, api_version: str, body: object = None) -> Any:
        """A call of Resource Manager's; what it answers, None for nothing. Raises azure's HttpResponseError."""
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
        """What is there; None if nothing is. Raises azure's HttpResponseError."""
        try:
            told: dict[str, Any] = self.call("GET", path, api_version)
        except Exception as error:
            if not faults.is_not_there(error):
                raise
            return None
        return told

    def storage(self) -> PipelineClient[Any, Any]:
        """For calls of Storage's, by their whole URLs. It raises for no answer, whatever its status."""
        from azure.core import PipelineClient
        from azure.core.pipeline import policies

        with self._lock:
            if self._storage is None:
                signing = policies.BearerTokenCredentialPolicy(self._get_credential(), STORAGE_SCOPE)
                self._storage = PipelineClient("", policies=[*_plain_policies(), signing], transport=self._transport())
            return self._storage

    def prices(self, url: str, query: Mapping[str, str] | None) -> Any:
        """What the list of retail prices answers, to whom no one has to say who he is. `url`: a path, or a page that an
        answer named. Raises azure's HttpResponseError."""
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

    def token(self) -> str:
        """An access token, as calls carry it. Raises azure's ClientAuthenticationError."""
        with self._lock:
            credential = self._get_credential()
        return credential.get_token(self._scope).token

    def unusable(self) -> str | None:
        """Why no call can be made, and what to do. Looks for credentials now and then, until there are some."""
        for module in ("azure.mgmt.compute", "azure.identity"):
            if not _is_installed(module):
                return f"{module} is not installed: pip install 'perdure[azure]'"
        if not self.subscription:
            return "no subscription is named: set azure.subscription in config.yaml, or AZURE_SUBSCRIPTION_ID"
        with self._lock:
            now = self._clock.now()
            if not self._has_credentials and (
                self._looked_at is None or now - self._looked_at >= LOOK_FOR_CREDENTIALS_AGAIN_S
            ):
                self._looked_at = now
                self._problem = self._look_for_credentials()
                self._has_credentials = self._problem is None
            return self._problem

    def _look_for_credentials(self) -> str | None:
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

        try:
            self._get_credential().get_token(self._scope)
        except ClientAuthenticationError as error:
            self._credential = None  # the next look reads the environment anew
            if "AADSTS" in str(error):  # somebody was asked, and said no
                return f"Azure refuses the credentials that it was shown: {_refusal(error)}"
            return (
                "no Azure credentials were found: set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, run "
                "`az login`, or give this machine a managed identity"
            )
        except ServiceRequestError:
            return None  # whether they are good is found out when they are used
        return None

    def _get_credential(self) -> TokenCredential:
        if self._credential is None:
            # Whoever names an endpoint and an authority of their own is not to ask Microsoft about it.
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
        transport = RequestsTransport(connection_timeout=CONNECT_TIMEOUT_S, read_timeout=ANSWER_TIMEOUT_S, **trust)
        named = [policies.UserAgentPolicy(base_user_agent="perdure"), policies.ProxyPolicy()]
        return PipelineClient(self._prices_url, transport=transport, policies=[*named, policies.ContentDecodePolicy()])

    def _make(self) -> ComputeManagementClient:
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

        return RequestsTransport(connection_timeout=CONNECT_TIMEOUT_S, read_timeout=ANSWER_TIMEOUT_S, **self._tls)


def _plain_policies() -> list[Any]:
    from azure.core.pipeline import policies

    return [
        policies.RequestIdPolicy(),
        policies.HeadersPolicy(),
        policies.UserAgentPolicy(base_user_agent="perdure"),
        policies.ProxyPolicy(),
    ]


def find_credential(**options: Any) -> TokenCredential:
    """The environment's, a workload's or machine's identity, or that of `az login`. `options`: the SDK's."""
    from azure.identity import DefaultAzureCredential

    # It warns, in many lines, whenever there are no credentials; errors say so in one.
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


def _refusal(error: Exception) -> str:
    line = next(line for line in str(error).splitlines() if "AADSTS" in line)
    return line[line.index("AADSTS") :].rstrip(" .")
