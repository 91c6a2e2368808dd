"""The server: TLS with a test authority, sign-in, and the routes of Resource Manager."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import ssl
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import trustme

from support.fakes.azure import responses, retail, subscription
from support.fakes.azure.arm import Arm
from support.fakes.azure.faults import STATUSES, TEXTS, Faults
from support.fakes.azure.holdings import ASSIGNMENTS, KINDS, ROLES, Holdings
from support.fakes.azure.metadata import MetadataService
from support.fakes.azure.queues import SCOPE, Queues, token
from support.fakes.azure.responses import Answer, Headers, Invalid
from support.fakes.azure.retail import PATH
from support.fakes.instance_processes import Machines
from support.fakes.purchases import Purchase

REGIONS = ("eastus", "northeurope")
SUBSCRIPTION = "0b1f6471-1bf0-4dda-aec3-111122223333"
TENANT, CLIENT, SECRET = "8a3b5f1c-0000-4000-8000-111122223333", "controller", "secret-that-shows-nowhere"
# An unsigned token; its middle part has the claims.
TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps({'appid': CLIENT}).encode()).decode().rstrip('=')}.none"

_GROUP = r"(?P<group>/subscriptions/[^/]+/resourceGroups/[^/]+)"
_ROUTES = [
    (re.compile(pattern, re.IGNORECASE), action)
    for pattern, action in (
        (rf"{_GROUP}", "Microsoft.Resources/subscriptions/resourceGroups"),
        (rf"{_GROUP}/providers/Microsoft.Network/virtualNetworks/[^/]+", "Microsoft.Network/virtualNetworks"),
        (rf"{_GROUP}/providers/Microsoft.Compute/virtualMachines(/[^/]+)?", "Microsoft.Compute/virtualMachines"),
        *(
            (
                rf"{_GROUP}/providers/Microsoft.Compute/virtualMachines/[^/]+/{action}",
                f"Microsoft.Compute/virtualMachines/{action}/action",
            )
            for action in ("deallocate", "start", "retrieveBootDiagnosticsData")
        ),
        (
            rf"{_GROUP}/providers/Microsoft.Compute/virtualMachines/[^/]+/simulateEviction",
            "Microsoft.Compute/virtualMachines/simulateEviction/action",
        ),
        ("/subscriptions/[^/]+/providers/Microsoft.Authorization/permissions", "Microsoft.Authorization/permissions"),
        (r"/subscriptions/[^/]+/providers/Microsoft\.\w+", "Microsoft.Resources/subscriptions/providers"),
        (
            "/subscriptions/[^/]+/providers/Microsoft.Compute/locations/[^/]+/publishers/[^/]+/artifacttypes/vmimage/offers"
            "/[^/]+/skus/[^/]+/versions",
            "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions",
        ),
        ("/subscriptions/[^/]+/providers/Microsoft.Compute/skus", "Microsoft.Compute/skus"),
        *((rf"{_GROUP}/providers/{kind}/[^/]+", kind) for kind in KINDS),
        *((rf"/subscriptions/[^/]+/providers/{kind}/[^/]+", kind) for kind in (ROLES, ASSIGNMENTS)),
        (
            "/subscriptions/[^/]+/providers/Microsoft.Compute/locations/[^/]+/usages",
            "Microsoft.Compute/locations/usages",
        ),
        (
            "/subscriptions/[^/]+/providers/Microsoft.Compute/locations/[^/]+/operations/[^/]+",
            "Microsoft.Compute/locations/operations",
        ),
    )
]
_VERBS = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}


class FakeAzure:
    """See the package. `folder` is for machines, None to run none. `hidden` is a folder that machines cannot see.

    `make_machines`: makes what runs them (cloud, folder, hidden).
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        hidden: Path | None = None,
        regions: tuple[str, ...] = REGIONS,
        make_machines: Callable[[str, Path, Path], Any] = Machines,
    ) -> None:
        self.faults = Faults()
        #: An action as roles name it, such as "Microsoft.Compute/virtualMachines/write" → how often it was called.
        self.calls: Counter[str] = Counter()
        self.regions = regions
        self.settings: dict[str, Any] = {}  # more of the section in config.yaml
        self._queues: Queues | None = None
        self._machines = make_machines("azure", folder, hidden or folder) if folder else None
        self._server = _Server(self)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        ca_file = _authority()[1]
        self._arm = Arm(self.faults, self._machines, self.url, TOKEN, {str(ca_file): ca_file.read_text()})
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server, and end all machines."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._arm.close()
        if self._machines:
            self._machines.close()

    # ---- for the controller ----

    @property
    def section(self) -> dict[str, Any]:
        """`azure` of config.yaml."""
        return {
            "subscription": SUBSCRIPTION,
            "regions": list(self.regions),
            "endpoint_url": self.url,
            "prices_url": self.url,
            "ca_file": str(_authority()[1]),
            **self.settings,
        }

    @property
    def config(self) -> str:
        return f"azure: {json.dumps(self.section)}\n"

    @property
    def environ(self) -> dict[str, str]:
        """Credentials of an application, and where it signs in."""
        return {
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": CLIENT,
            "AZURE_CLIENT_SECRET": SECRET,
            "AZURE_AUTHORITY_HOST": self.url,
        }

    # ---- for tests ----

    def purchases(self) -> list[Purchase]:
        """All machines ever launched, in order of launch, in their current state."""
        return sorted(self._arm.purchases(), key=lambda one: one.launched_at)

    def living(self) -> list[Purchase]:
        return [one for one in self.purchases() if one.ended_at is None]

    def evict(self, id: str, *, notice_s: float | None = None) -> None:
        """Evict a spot machine: after a scheduled event in its metadata, or at once without one."""
        self._arm.evict(id, notice_s)

    def delete_by_hand(self, id: str) -> None:
        """Delete a machine, as a user does in the portal."""
        self._arm.delete_by_hand(id)

    def body_of(self, id: str) -> dict[str, Any]:
        """The body of the request that created the machine."""
        return self._arm.body_of(id)

    def networks(self) -> dict[str, dict[str, Any]]:
        return self._arm.networks()

    def forget_networks(self) -> None:
        """Delete all networks, as a cleanup by another user does."""
        self._arm.forget_networks()

    @property
    def holdings(self) -> Holdings:
        """Disks, interfaces, addresses, security groups; identities, roles."""
        return self._arm.holdings

    @contextlib.contextmanager
    def queues(self, folder: Path) -> Iterator[Queues]:
        """Add a storage account with queues, for the duration of the context."""
        with Queues(folder, self.url, _authority()[0]) as self._queues:
            yield self._queues
        self._queues = None

    def metadata_of(self, id: str) -> MetadataService:
        return self._arm.metadata_of(id)

    def agent_log(self, id: str) -> str:
        """The console output of the machine."""
        return self._machines.agent_log(id) if self._machines else ""

    # ---- HTTP ----

    def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer | None:
        """Answer a request. None: the connection breaks."""
        url = urlsplit(target)
        if url.path.startswith(f"/{TENANT}/"):
            return self._sign_in(url.path, body)
        if self._queues is not None and (action := self._queues.action(url.path)):
            self.calls[action] += 1
            if self.faults.throttle > 0:
                self.faults.throttle -= 1
                return self._queues.refused(503, "ServerBusy")
            if code := self.faults.deny:
                return self._queues.refused(403, code)
            return self._queues.answer(method, target, headers, body)
        if url.path == PATH:
            self.calls["prices"] += 1
            return retail.answer(self.url, dict(parse_qsl(url.query)), self.faults)
        if url.path.startswith("/console/"):  # of a storage account of Azure's own: the URL has a signature
            return Answer(200, self._arm.console(url.path.rpartition("/")[2]).encode(), {"Content-Type": "text/plain"})
        try:
            group, action = _route(method, url.path)
        except Invalid as invalid:
            return responses.error(invalid.code, str(invalid), invalid.status)
        self.calls[action] += 1
        if _use_up(self.faults.lost_requests, action):
            return None
        try:
            self._admit(headers, dict(parse_qsl(url.query)), action)
            answer = self._call(method, group, action, target, headers, body)
        except Invalid as invalid:
            answer = responses.error(invalid.code, str(invalid), invalid.status)
            if invalid.status == 429:
                answer.headers["Retry-After"] = "7"
        return None if _use_up(self.faults.lost_answers, action) else answer

    def _admit(self, headers: Headers, query: dict[str, str], action: str) -> None:
        if headers["Authorization"] != f"Bearer {TOKEN}":
            raise Invalid("InvalidAuthenticationToken", TEXTS["InvalidAuthenticationToken"], 401)
        if "api-version" not in query:
            raise Invalid("MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required.")
        if self.faults.throttle > 0:
            self.faults.throttle -= 1
            raise Invalid("TooManyRequests", TEXTS["TooManyRequests"], 429)
        if code := self.faults.deny or ("AuthorizationFailed" if action in self.faults.forbid else None):
            raise Invalid(code, TEXTS.get(code, code), STATUSES.get(code, 403))

    def _call(self, method: str, group: str, action: str, target: str, headers: Headers, body: bytes) -> Answer:
        path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        content = json.loads(body) if body else None
        if (kind := action.rpartition("/")[0]) in KINDS:
            return self._arm.holding(kind, group, path, method, content)
        return self._call_for_machines(method, group, action, path, query, headers, content)

    def _call_for_machines(
        self,
        method: str,
        group: str,
        action: str,
        path: str,
        query: dict[str, str],
        headers: Headers,
        body: Any,
    ) -> Answer:
        arm = self._arm
        match action.rpartition("/"):
            case ("Microsoft.Resources/subscriptions/resourceGroups", _, _):
                return arm.group(path, method, body)
            case ("Microsoft.Network/virtualNetworks", _, _):
                return arm.network(group, path, method, body)
            case ("Microsoft.Compute/virtualMachines", _, "write"):
                return arm.update(group, path, body) if method == "PATCH" else arm.create(group, path, body, headers)
            case (_, _, "action"):
                return arm.act(group, *path.rsplit("/", 1))
            case ("Microsoft.Compute/virtualMachines", _, "delete"):
                return arm.delete(group, path)
            case ("Microsoft.Compute/virtualMachines", _, _) if path.lower().endswith("/virtualmachines"):
                return arm.list(group, path, query)
            case ("Microsoft.Compute/virtualMachines", _, _):
                return arm.get(group, path, query)
            case _:
                return self._call_for_subscription(action.rpartition("/")[0], path, query)

    def _call_for_subscription(self, kind: str, path: str, query: dict[str, str]) -> Answer:
        match kind:
            case "Microsoft.Authorization/permissions":
                return subscription.permissions(self.faults)
            case "Microsoft.Resources/subscriptions/providers":
                return subscription.provider(path.rpartition("/")[2], self.faults)
            case "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions":
                return subscription.image_versions(path, self.faults)
            case "Microsoft.Compute/skus":
                return subscription.skus(query, self.faults)
            case "Microsoft.Compute/locations/usages":
                return subscription.usages(path.split("/")[-2], self.faults)
            case _:
                return self._arm.operation(path.rpartition("/")[2])

    def _sign_in(self, path: str, body: bytes) -> Answer:
        """Answer as Entra ID: with its metadata, or with a token for a caller that has the secret."""
        base = f"{self.url}/{TENANT}"
        if path.endswith("/.well-known/openid-configuration"):
            metadata = {
                "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                "token_endpoint": f"{base}/oauth2/v2.0/token",
                "issuer": f"{base}/v2.0",
            }
            return Answer(200, metadata)
        form = dict(parse_qsl(body.decode()))
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
            text = "AADSTS7000215: Invalid client secret provided."
            return Answer(401, {"error": "invalid_client", "error_description": text, "error_codes": [7000215]})
        issued = token() if SCOPE in form.get("scope", "").split() else TOKEN
        return Answer(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": issued})


def _route(method: str, path: str) -> tuple[str, str]:
    """The resource group's path, and the action as roles name it. Raises Invalid."""
    for pattern, action in _ROUTES:
        if match := pattern.fullmatch(path):
            if method not in _VERBS and not action.endswith("/action"):
                raise Invalid("MethodNotAllowed", f"{method} is not allowed.", 405)
            group = match.groupdict().get("group", "")
            return group, action if action.endswith("/action") else f"{action}/{_VERBS[method]}"
    raise Invalid("InvalidResourceType", f"The resource type of '{path}' could not be found.", 404)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, azure: FakeAzure) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.azure = azure
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _authority()[0].configure_cert(self._context)

    def get_request(self) -> tuple[Any, Any]:
        """The TLS handshake happens in the thread of the connection."""
        connection, address = super().get_request()
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is expected. Any other error is a bug of this fake."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.azure.answer(self.command, self.path, self.headers, body)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _handle

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""


@cache
def _authority() -> tuple[trustme.LeafCert, Path, object]:
    """A certificate for this computer, the file of the authority that signed it, and the folder of that file.

    They are created once. The folder is removed when the process ends."""
    authority, folder = trustme.CA(), tempfile.TemporaryDirectory(prefix="perdure-fake-azure-")
    path = Path(folder.name) / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return authority.issue_cert("127.0.0.1"), path, folder


def _use_up(remaining: dict[str, int], action: str) -> bool:
    """Whether a call has the fault, of which one less remains then."""
    if remaining.get(action, 0) <= 0:
        return False
    remaining[action] -= 1
    return True
