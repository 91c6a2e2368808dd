"""How a request authenticates: tokens, files that are renewed, client certificates, and `exec` plugins.

The protocol of plugins: kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

PLUGIN_TIMEOUT_S = 30.0
RENEW_BEFORE_S = 60.0
TOKEN_FILE_AGE_S = 60.0
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class CredentialsError(Exception):
    """No credentials could be obtained. Nothing was sent to the cluster."""


class Credentials:
    """The base class: anonymous."""

    def headers(self) -> dict[str, str]:
        """The headers of the next request. Raises CredentialsError. May call a program, which takes seconds."""
        return {}

    def certificate(self) -> tuple[bytes, bytes] | None:
        """A client certificate and its key, both PEM. Raises CredentialsError."""
        return None

    def renew(self) -> bool:
        """The server has rejected these credentials: forget what is cached. Whether the next ones may differ.

        They also differ if another thread, whose request was rejected too, was first to forget them.
        """
        return False


@dataclass(frozen=True)
class BearerToken(Credentials):
    token: str

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True)
class PasswordLogin(Credentials):
    user: str
    password: str

    def headers(self) -> dict[str, str]:
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}


@dataclass(frozen=True)
class ClientCertificate(Credentials):
    cert: bytes
    key: bytes

    def certificate(self) -> tuple[bytes, bytes] | None:
        return self.cert, self.key


class TokenFile(Credentials):
    """A token in a file that something else renews: a service account's token lives for an hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token: tuple[float, str] | None = None

    def headers(self) -> dict[str, str]:
        now, known = time.monotonic(), self._token  # read once: another thread may forget it at any time
        if known is None or now - known[0] > TOKEN_FILE_AGE_S:
            try:
                self._token = known = (now, self._path.read_text().strip())
            except OSError as error:
                raise CredentialsError(f"the token file {self._path} cannot be read: {error.strerror}") from error
        return {"Authorization": f"Bearer {known[1]}"}

    def renew(self) -> bool:
        self._token = None
        return True


class ExecPlugin(Credentials):
    """Credentials that a program prints, such as `aws eks get-token`. Kept until a minute before they expire."""

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        server: str,
        cluster: Mapping[str, Any],
        environ: Mapping[str, str],
    ) -> None:
        self._config = config
        self._folder = folder
        self._server = server
        self._cluster = cluster
        self._environ = environ
        self._lock = threading.Lock()
        self._status: Mapping[str, Any] | None = None
        self._expires_at: float | None = None

    def headers(self) -> dict[str, str]:
        token = self._current().get("token")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def certificate(self) -> tuple[bytes, bytes] | None:
        status = self._current()
        if not status.get("clientCertificateData"):
            return None
        return str(status["clientCertificateData"]).encode(), str(status.get("clientKeyData", "")).encode()

    def renew(self) -> bool:
        with self._lock:
            self._status = None
        return True

    def _current(self) -> Mapping[str, Any]:
        with self._lock:
            expires_at = self._expires_at
            # Plugins state when their token expires by the wall clock, as the cluster counts it.
            if self._status is None or (expires_at is not None and expires_at - RENEW_BEFORE_S <= _wall_now()):
                self._status, self._expires_at = self._run()
            return self._status

    def _run(self) -> tuple[Mapping[str, Any], float | None]:
        command, version = str(self._config.get("command", "")), str(self._config.get("apiVersion", ""))
        if version not in _VERSIONS:
            raise CredentialsError(f"the plugin {command!r} has the apiVersion {version!r}: write {_VERSIONS[0]}")
        # A relative path with a folder starts from the kubeconfig's folder; a bare name is looked up on PATH.
        path = str(self._folder / command) if os.sep in command else command
        extra = {str(one["name"]): str(one["value"]) for one in self._config.get("env") or ()}
        spec: dict[str, Any] = {"interactive": False}
        if self._config.get("provideClusterInfo"):
            spec["cluster"] = {"server": self._server} | {
                key: self._cluster[name]
                for key, name in (
                    ("certificate-authority-data", "certificate-authority-data"),
                    ("tls-server-name", "tls-server-name"),
                    ("insecure-skip-tls-verify", "insecure-skip-tls-verify"),
                    ("proxy-url", "proxy-url"),
                )
                if name in self._cluster
            }
        info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
        try:
            done = subprocess.run(
                [path, *map(str, self._config.get("args") or ())],
                env={**self._environ, **extra, "KUBERNETES_EXEC_INFO": info},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PLUGIN_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            hint = str(self._config.get("installHint") or "install it where the controller runs")
            raise CredentialsError(f"the credential plugin {command!r} is not installed: {hint}") from error
        except subprocess.TimeoutExpired as error:
            raise CredentialsError(
                f"the credential plugin {command!r} did not end in {PLUGIN_TIMEOUT_S:g} s"
            ) from error
        except OSError as error:
            raise CredentialsError(f"the credential plugin {command!r} cannot be run: {error.strerror}") from error
        if done.returncode != 0:
            words = done.stderr.strip()[-500:]
            raise CredentialsError(f"the credential plugin {command!r} exited with {done.returncode}: {words}")
        return _parse(command, done.stdout)


def _parse(command: str, output: str) -> tuple[Mapping[str, Any], float | None]:
    try:
        status = json.loads(output)["status"]
        stamp = status.get("expirationTimestamp")
        expires_at = datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp() if stamp else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CredentialsError(f"the credential plugin {command!r} printed no ExecCredential") from error
    return status, expires_at


def _wall_now() -> float:
    return time.time()  # noqa: TID251 - see `_current`
