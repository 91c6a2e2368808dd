"""A storage account's queues: azurite has them, behind the faults and the books of the fake Azure.

Azurite itself reads the token (whom it is for, and until when); it can not check who signed it.
"""

from __future__ import annotations

import base64
import re
import ssl
from http.client import HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.sax.saxutils import escape

import jwt
import trustme

from azurite import ACCOUNT, Azurite
from fake_azure.answers import Answer
from perdure.controller.clock import SystemClock

SCOPE = "https://storage.azure.com/.default"
# Whoever may this may get messages and delete them: learn.microsoft.com/rest/api/storageservices/
# authorize-with-azure-active-directory
PROCESS = "Microsoft.Storage/storageAccounts/queueServices/queues/messages/process/action"
_MESSAGES = re.compile(rf"/{ACCOUNT}/[^/]+/messages(/[^/]+)?")


class Queues:
    """`url`: of the fake Azure, behind which they are."""

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
        """Its URL, for `azure.notice_queues`."""
        assert self._own("PUT", name).status == 201
        return f"{self._url}/{ACCOUNT}/{name}"

    def send(self, name: str, text: str, *, encoded: bool = True) -> None:
        """As Event Grid does, or as it is."""
        told = base64.b64encode(text.encode()).decode() if encoded else escape(text)
        body = f"<QueueMessage><MessageText>{told}</MessageText></QueueMessage>".encode()
        assert self._own("POST", f"{name}/messages", body).status == 201

    def left(self, name: str) -> int:
        """How many are not deleted."""
        return int(self._own("GET", f"{name}?comp=metadata").headers["x-ms-approximate-messages-count"])

    # ---- for the fake ----

    def action(self, path: str) -> str | None:
        """What a role must allow for it; None if it is none of theirs."""
        return PROCESS if _MESSAGES.fullmatch(path) else None

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        address = re.sub(".*//|/.*", "", self._azurite.endpoint)
        connection = HTTPSConnection(address, context=ssl._create_unverified_context(), timeout=30)
        sent = {name: headers[name] for name in ("Authorization", "x-ms-version", "Content-Type") if name in headers}
        connection.request(method, target, body or None, sent)
        told = connection.getresponse()
        kept = {name: value for name, value in told.getheaders() if name.lower().startswith(("x-ms-", "content-type"))}
        return Answer(told.status, told.read(), kept)

    @staticmethod
    def refused(status: int, code: str) -> Answer:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'
        return Answer(status, body.encode(), {"x-ms-error-code": code, "Content-Type": "application/xml"})

    def _own(self, method: str, what: str, body: bytes = b"") -> Answer:
        headers = {
            "Authorization": f"Bearer {token()}",
            "x-ms-version": "2020-10-02",
            "Content-Type": "application/xml",
        }
        return self.answer(method, f"/{ACCOUNT}/{what}", headers, body)


def token() -> str:
    """As Entra ID gives one for Storage."""
    now = int(SystemClock().now())
    tenant = "8a3b5f1c-0000-4000-8000-111122223333"
    told = {"iss": f"https://sts.windows.net/{tenant}/", "aud": "https://storage.azure.com", "tid": tenant}
    return jwt.encode({**told, "nbf": now - 60, "iat": now, "exp": now + 3600}, "x" * 32, algorithm="HS256")
