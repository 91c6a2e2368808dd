"""Clients of Compute Engine, created on first use. They try each call once: retries are the caller's."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.gcp.sdk import lean_sdk
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.runtime.clock import Clock
from perdure.sdk.connection.installation import install_command

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.compute_v1 import (
        InstancesClient,
        RegionsClient,
        ZoneOperationsClient,
        ZonesClient,
    )

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RESPONSE_TIMEOUT_S = 30.0
CREDENTIALS_RETRY_S = 30.0
_NO_PROJECT = "no project is configured: add `project: …` to the section gcp of config.yaml"


class GcpConnections:
    """Thread-safe: clients are, and their creation is locked."""

    def __init__(self, settings: GcpSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._project: str | None = settings.project
        self._clients: dict[str, Any] = {}
        self._thread_local = threading.local()  # a session per thread: sessions are not thread-safe
        self._problem: str | None = None
        self._checked_at: float | None = None

    # ---- clients ----

    @property
    def instances(self) -> InstancesClient:
        client: InstancesClient = self._client("InstancesClient")
        return client

    @property
    def operations(self) -> ZoneOperationsClient:
        client: ZoneOperationsClient = self._client("ZoneOperationsClient")
        return client

    @property
    def zones(self) -> ZonesClient:
        client: ZonesClient = self._client("ZonesClient")
        return client

    @property
    def regions(self) -> RegionsClient:
        client: RegionsClient = self._client("RegionsClient")
        return client

    def session(self) -> AuthorizedSession:
        """An HTTPS session for one thread, for services without a client. Raises what `find_credentials` does."""
        from google.auth.transport.requests import AuthorizedSession

        with self._lock:
            self._find_credentials()
            return AuthorizedSession(self._credentials)  # type: ignore[no-untyped-call]

    def call(
        self, method: str, base_url: str, path: str, body: object = None, *, query: Mapping[str, str] | None = None
    ) -> Any:
        """Call an API without a client, or for a subset of its fields. Returns the JSON of the response.

        `base_url`: of that API; `gcp.endpoint_url` replaces it. Raises a GoogleAPICallError, or what `requests` and
        `find_credentials` raise.
        """
        from google.api_core.exceptions import from_http_response

        session = getattr(self._thread_local, "session", None)
        if session is None:
            session = self._thread_local.session = self.session()
        url = f"{(self._settings.endpoint_url or base_url).rstrip('/')}{path}"
        response = session.request(method, url, params=query, json=body, timeout=RESPONSE_TIMEOUT_S)
        if response.status_code >= 400:
            raise from_http_response(response)  # type: ignore[no-untyped-call]
        return response.json()

    def account(self) -> str:
        """The account of the credentials, as far as they contain it. Raises what `find_credentials` does."""
        with self._lock:
            self._find_credentials()
            return getattr(self._credentials, "service_account_email", None) or "a user's own credentials"

    @property
    def once(self) -> dict[str, Any]:
        """Arguments of every call: no retries, and a time-out."""
        return {"retry": None, "timeout": RESPONSE_TIMEOUT_S}

    @property
    def project(self) -> str:
        """Raises CloudRejected."""
        with self._lock:
            self._find_credentials()
            if self._project is None:
                raise CloudRejected("authError", _NO_PROJECT)
            return self._project

    # ---- credentials ----

    def unusable(self) -> str | None:
        """Why no call can succeed, and what to do. Searches for credentials periodically until there are some."""
        if not _is_installed("google.cloud.compute_v1"):
            return f"google-cloud-compute is not installed; run: {install_command('gcp')}"
        with self._lock:
            if self._credentials is not None:
                return None if self._project else _NO_PROJECT
            now = self._clock.now()
            if self._checked_at is None or now - self._checked_at >= CREDENTIALS_RETRY_S:
                self._checked_at = now
                self._problem = self._find_credentials_problem()
            return self._problem

    def _find_credentials_problem(self) -> str | None:
        from google.auth.exceptions import GoogleAuthError

        try:
            self._find_credentials()
        except (GoogleAuthError, OSError, ValueError) as error:
            if self._settings.credentials is not None:
                return f"{error}: correct gcp.credentials in config.yaml"
            if path := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                return f"the credentials that GOOGLE_APPLICATION_CREDENTIALS={path} names cannot be used: {error}"
            return (
                "no Google credentials were found: run `gcloud auth application-default login`, set "
                "GOOGLE_APPLICATION_CREDENTIALS, or give this machine a service account"
            )
        return None if self._project else _NO_PROJECT

    def _find_credentials(self) -> None:
        if self._credentials is not None:
            return
        self._credentials, project = find_credentials(self._settings.credentials)
        self._project = self._project or project

    def _client(self, name: str) -> Any:
        with self._lock:
            self._find_credentials()
            if name not in self._clients:
                # The SDK requires the client and its credentials to have the same universe.
                universe = getattr(self._credentials, "universe_domain", None)
                options = {"api_endpoint": self._settings.endpoint_url, "universe_domain": universe}
                client_class = lean_sdk.client_class(name)
                self._clients[name] = client_class(credentials=self._credentials, client_options=options)
            return self._clients[name]


def find_credentials(key_file: str | None) -> tuple[Any, str | None]:
    """(credentials, their project), from a service account's key file, or Application Default Credentials.

    Raises GoogleAuthError, OSError, ValueError.
    """
    if key_file is None:
        import google.auth

        credentials, project = google.auth.default(scopes=[SCOPE])
        return credentials, project
    from google.oauth2 import service_account

    credentials = service_account.Credentials.from_service_account_file(key_file, scopes=[SCOPE])  # type: ignore[no-untyped-call]
    return credentials, credentials.project_id


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
