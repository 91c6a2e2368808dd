"""Microsoft's emulator of Azure Storage, azurite, in a process of its own, with an account of the tests'.

`scripts/ensure-azurite.sh` installs it. `problem()` says why it can not be used here.
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
from typing import Any, Self

ACCOUNT = "acme"
KEY = base64.b64encode(b"a key that shows nowhere, of an account that is nowhere".ljust(64, b".")).decode()
_SERVICES = Path(sys.prefix) / "azurite" / "node_modules" / "azurite" / "dist" / "src"


def problem() -> str | None:
    if _node() is None:
        return "Node.js is not installed"
    return None if _SERVICES.exists() else "azurite is not installed: run `make azurite`"


def _node() -> str | None:
    beside = Path(sys.prefix) / "bin" / "node"
    return str(beside) if beside.exists() else shutil.which("node")


class Azurite:
    """`service`: its containers ("blob") or its queues ("queue"). `tls`: the certificate and key of an HTTPS server,
    which then takes tokens of Entra ID's as well."""

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
        """The account's."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}/{ACCOUNT}"

    @property
    def environ(self) -> Mapping[str, str]:
        """The account's key, as a controller finds it."""
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
        """It accepts calls, and answers none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> Any:
        """Microsoft's own, with the account's key."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(self.endpoint, {"account_name": ACCOUNT, "account_key": KEY}, retry_total=0)

    def objects(self, container: str) -> dict[str, bytes]:
        found = self.client().get_container_client(container)
        return {one.name: found.download_blob(one.name).readall() for one in found.list_blobs()}
