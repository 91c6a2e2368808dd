"""Clients of Compute Engine, made when first used. One attempt per call: the caller repeats, as data."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.controller.clock import Clock
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.gcp import services
from perdure.controller.clouds.gcp.settings import GcpSettings

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.compute_v1 import (
        InstancesClient,
        RegionsClient,
        ZoneOperationsClient,
        ZonesClient,
    )

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ANSWER_TIMEOUT_S = 30.0
LOOK_FOR_CREDENTIALS_AGAIN_S = 30.0
_NO_PROJECT = "no project is named: add `project: …` to the section gcp of config.yaml"


class Connections:
    """Shared by threads: clients may be, and making one is locked."""

    def __init__(self, settings: GcpSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._project: str | None = settings.project
        self._clients: dict[str, Any] = {}
        self._of_thread = threading.local()  # its session: they are for one thread each
        self._problem: str | None = None
        self._looked_at: float | None = None

    # ---- what is called ----

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
        """Plain HTTPS, for what no client is there for; for one thread. Raises what `find_credentials` does."""
        from google.auth.transport.requests import AuthorizedSession

        with self._lock:
            self._find_credentials()
            return AuthorizedSession(self._credentials)  # type: ignore[no-untyped-call]

    def call(
        self, method: str, base_url: str, path: str, body: object = None, *, query: Mapping[str, str] | None = None
    ) -> Any:
        """A call of another of Google's APIs, or of which only some fields are wanted; what it answers, in JSON.
        `base_url`: of that API, unless the configuration names an endpoint for all. Raises a GoogleAPICallError, or
        what `requests` and `find_credentials` raise."""
        from google.api_core.exceptions import from_http_response

        session = getattr(self._of_thread, "session", None)
        if session is None:
            session = self._of_thread.session = self.session()
        url = f"{(self._settings.endpoint_url or base_url).rstrip('/')}{path}"
        response = session.request(method, url, params=query, json=body, timeout=ANSWER_TIMEOUT_S)
        if response.status_code >= 400:
            raise from_http_response(response)  # type: ignore[no-untyped-call]
        return response.json()

    def account(self) -> str:
        """Whose credentials these are, as far as they tell. Raises what looking for them raises."""
        with self._lock:
            self._find_credentials()
            return getattr(self._credentials, "service_account_email", None) or "a user's own credentials"

    @property
    def once(self) -> dict[str, Any]:
        """How every call is made: once, and not for ever."""
        return {"retry": None, "timeout": ANSWER_TIMEOUT_S}

    @property
    def project(self) -> str:
        """Raises Refused."""
        with self._lock:
            self._find_credentials()
            if self._project is None:
                raise Refused("authError", _NO_PROJECT)
            return self._project

    # ---- credentials ----

    def unusable(self) -> str | None:
        """Why no call can be made, and what to do. Looks for credentials now and then, until there are some."""
        if not _has("google.cloud.compute_v1"):
            return "google-cloud-compute is not installed: pip install 'perdure[gcp]'"
        with self._lock:
            if self._credentials is not None:
                return None if self._project else _NO_PROJECT
            now = self._clock.now()
            if self._looked_at is None or now - self._looked_at >= LOOK_FOR_CREDENTIALS_AGAIN_S:
                self._looked_at = now
                self._problem = self._look_for_credentials()
            return self._problem

    def _look_for_credentials(self) -> str | None:
        from google.auth.exceptions import GoogleAuthError

        try:
            self._find_credentials()
        except (GoogleAuthError, OSError, ValueError) as error:
            if self._settings.credentials is not None:
                return f"{error}: correct gcp.credentials in config.yaml"
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
                # The SDK insists that the client and its credentials are of one universe.
                universe = getattr(self._credentials, "universe_domain", None)
                options = {"api_endpoint": self._settings.endpoint_url, "universe_domain": universe}
                made = services.client_class(name)
                self._clients[name] = made(credentials=self._credentials, client_options=options)
            return self._clients[name]


def find_credentials(key_file: str | None) -> tuple[Any, str | None]:
    """Credentials and their project: of a service account's key file, or as Google's own tools find them.

    Raises GoogleAuthError, OSError, ValueError.
    """
    if key_file is None:
        import google.auth

        found, project = google.auth.default(scopes=[SCOPE])
        return found, project
    from google.oauth2 import service_account

    read = service_account.Credentials.from_service_account_file(key_file, scopes=[SCOPE])  # type: ignore[no-untyped-call]
    return read, read.project_id


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False
