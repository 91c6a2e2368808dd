"""azurite, Microsoft's emulator of Azure Storage, in a separate process, with an account for the tests.

`scripts/ensure-azurite.sh` installs it. `problem()` returns the reason why it cannot be used here.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient

ACCOUNT = "acme"
KEY = base64.b64encode(b"a key that shows nowhere, of an account that is nowhere".ljust(64, b".")).decode()
_SERVICES = Path(sys.prefix) / "azurite" / "node_modules" / "azurite" / "dist" / "src"


def problem() -> str | None:
    """The reason why azurite cannot be used on this computer, or None."""
    if _node() is None:
        return "Node.js is not installed"
    return None if _SERVICES.exists() else "azurite is not installed: run `make azurite`"


def _node() -> str | None:
    beside = Path(sys.prefix) / "bin" / "node"
    return str(beside) if beside.exists() else shutil.which("node")


class Azurite:
    """`service` is "blob" for containers or "queue" for queues. With `tls`, a certificate and its key, it serves HTTPS
    and accepts tokens of Entra ID too."""

    def __init__(self, folder: Path, *, service: str = "blob", tls: tuple[Path, Path] | None = None) -> None:
        self._folder = folder
        self._service = service
        self._tls = tls
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The URL of the account."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}/{ACCOUNT}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The account and its key, for a controller."""
        return {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(_node()), str(_SERVICES / self._service / "main.js"), "--silent"]
        command += [f"--{self._service}Host", "127.0.0.1", f"--{self._service}Port", str(self._port)]
        command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        if self._tls:
            command += ["--cert", str(self._tls[0]), "--key", str(self._tls[1]), "--oauth", "basic"]
        with open(self._folder / "azurite.log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            )
        pause = threading.Event()
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return self
            pause.wait(0.05)
        self.__exit__()
        raise AssertionError(f"azurite does not answer: {(self._folder / 'azurite.log').read_text()[-2000:]}")

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """From now on, it accepts calls and does not respond."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> BlobServiceClient:
        """Microsoft's client, with the account's key."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(self.endpoint, {"account_name": ACCOUNT, "account_key": KEY}, retry_total=0)

    def objects(self, container: str) -> dict[str, bytes]:
        blobs = self.client().get_container_client(container)
        return {one.name: blobs.download_blob(one.name).readall() for one in blobs.list_blobs()}
