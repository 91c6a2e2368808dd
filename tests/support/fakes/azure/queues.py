"""A storage account's queues: azurite serves them, behind the faults and call counts of the fake Azure.

azurite checks a token's audience and expiry itself; it cannot check its signature.
"""

from __future__ import annotations

import base64
import re
import ssl
from http.client import HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.sax.saxutils import escape

import jwt
import trustme

from perdure.controller.runtime.clock import SystemClock
from support.fakes.azure.responses import Answer, Headers
from support.fakes.azurite import ACCOUNT, Azurite

SCOPE = "https://storage.azure.com/.default"
# The permission to get messages and delete them: learn.microsoft.com/rest/api/storageservices/
# authorize-with-azure-active-directory
PROCESS = "Microsoft.Storage/storageAccounts/queueServices/queues/messages/process/action"
_MESSAGES = re.compile(rf"/{ACCOUNT}/[^/]+/messages(/[^/]+)?")


class Queues:
    """The queues of one account. `url` is that of the fake Azure, which forwards calls to them."""

    def __init__(self, folder: Path, url: str, certificate: trustme.LeafCert) -> None:
        folder.mkdir(parents=True)
        for name, pem in (("cert", certificate.cert_chain_pems[0]), ("key", certificate.private_key_pem)):
            pem.write_to_path(str(folder / f"{name}.pem"))
        self._azurite = Azurite(folder, service="queue", tls=(folder / "cert.pem", folder / "key.pem"))
        self._url = url

    def __enter__(self) -> Self:
        self._azurite.__enter__()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._azurite.__exit__()

    # ---- for tests ----

    def make(self, name: str) -> str:
        """Create a queue. Returns its URL, for `azure.interruption_queues`."""
        assert self._call("PUT", name).status == 201
        return f"{self._url}/{ACCOUNT}/{name}"

    def send(self, name: str, text: str, *, encoded: bool = True) -> None:
        """Send a message: in Base64, as Event Grid does, or as plain text."""
        content = base64.b64encode(text.encode()).decode() if encoded else escape(text)
        body = f"<QueueMessage><MessageText>{content}</MessageText></QueueMessage>".encode()
        assert self._call("POST", f"{name}/messages", body).status == 201

    def count(self, name: str) -> int:
        """How many messages are not deleted."""
        return int(self._call("GET", f"{name}?comp=metadata").headers["x-ms-approximate-messages-count"])

    # ---- for the fake ----

    def action(self, path: str) -> str | None:
        """The permission that a call needs. None if the path is not one of a queue."""
        return PROCESS if _MESSAGES.fullmatch(path) else None

    def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        address = re.sub(".*//|/.*", "", self._azurite.endpoint)
        connection = HTTPSConnection(address, context=ssl._create_unverified_context(), timeout=30)
        sent = {name: headers[name] for name in ("Authorization", "x-ms-version", "Content-Type") if name in headers}
        connection.request(method, target, body or None, sent)
        response = connection.getresponse()
        kept = {
            name: value for name, value in response.getheaders() if name.lower().startswith(("x-ms-", "content-type"))
        }
        return Answer(response.status, response.read(), kept)

    @staticmethod
    def refused(status: int, code: str) -> Answer:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'
        return Answer(status, body.encode(), {"x-ms-error-code": code, "Content-Type": "application/xml"})

    def _call(self, method: str, path: str, body: bytes = b"") -> Answer:
        headers = {
            "Authorization": f"Bearer {token()}",
            "x-ms-version": "2020-10-02",
            "Content-Type": "application/xml",
        }
        return self.answer(method, f"/{ACCOUNT}/{path}", headers, body)


def token() -> str:
    """A token for Storage, as Entra ID issues it."""
    now = int(SystemClock().now())
    tenant = "8a3b5f1c-0000-4000-8000-111122223333"
    claims = {"iss": f"https://sts.windows.net/{tenant}/", "aud": "https://storage.azure.com", "tid": tenant}
    return jwt.encode({**claims, "nbf": now - 60, "iat": now, "exp": now + 3600}, "x" * 32, algorithm="HS256")
