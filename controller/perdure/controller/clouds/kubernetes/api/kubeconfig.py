"""Contexts of a kubeconfig: where their API servers are, and how to authenticate.

Format: kubernetes.io/docs/reference/config-api/kubeconfig.v1. Several files, as in KUBECONFIG, are merged like kubectl
does: the first file that defines a name counts, and the first `current-context`. Without a file, a controller that runs
in a pod uses the pod's service account, as the context `in-cluster`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.kubernetes.api.credentials import (
    BearerToken,
    ClientCertificate,
    Credentials,
    ExecPlugin,
    PasswordLogin,
    TokenFile,
)

IN_CLUSTER = "in-cluster"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
INVALID = "InvalidKubeconfig"


@dataclass(frozen=True)
class ClusterAccess:
    """Everything that is needed to call one API server."""

    context: str
    server: str  # base URL, which may contain a path
    credentials: Credentials = field(repr=False)
    namespace: str | None = None  # of the context
    ca: str | None = None  # PEM; None: the computer's certificate authorities
    is_insecure: bool = False  # certificates are not verified
    tls_server_name: str | None = None
    proxy_url: str | None = None


class Kubeconfig:
    """The contexts of some files, read anew when a file changes. Thread-safe: it replaces its state as a whole."""

    def __init__(self, environ: Mapping[str, str], paths: Sequence[str] = ()) -> None:
        """`paths`: the files; empty: those of KUBECONFIG, or ~/.kube/config."""
        self._environ = environ
        self._paths = [Path(path).expanduser() for path in paths] or _default_paths(environ)
        self._loaded: tuple[object, _Merged] | None = None
        self._accesses: dict[str, tuple[object, ClusterAccess]] = {}

    def contexts(self) -> tuple[str, ...]:
        """The names of all contexts, in the order of the files. Raises CloudRejected for an invalid file."""
        merged = self._merged()
        return tuple(merged.contexts) or ((IN_CLUSTER,) if self._is_in_cluster() else ())

    def current(self) -> str | None:
        """The current context; None if there is none."""
        current = self._merged().current
        return current or (IN_CLUSTER if not self._merged().contexts and self._is_in_cluster() else None)

    def access(self, context: str) -> ClusterAccess:
        """How to call the cluster of `context`: the same object until a file changes. Raises CloudRejected."""
        merged = self._merged()
        version = self._loaded[0] if self._loaded else None
        known = self._accesses.get(context)
        if known is not None and known[0] == version:
            return known[1]
        if context in merged.contexts:
            access = _access(context, merged, self._environ)
        elif context == IN_CLUSTER and self._is_in_cluster():
            access = _in_cluster(self._environ)
        else:
            have = ", ".join(merged.contexts) or "none"
            raise CloudRejected("NoSuchContext", f"no context {context!r} in {self.description()}; it has: {have}")
        self._accesses[context] = (version, access)
        return access

    def description(self) -> str:
        """The files, for messages."""
        return " and ".join(map(str, self._paths))

    def _is_in_cluster(self) -> bool:
        return "KUBERNETES_SERVICE_HOST" in self._environ and (_account_folder(self._environ) / "token").exists()

    def _merged(self) -> _Merged:
        version = tuple(_version(path) for path in self._paths)
        if self._loaded is None or self._loaded[0] != version:
            self._loaded = (version, _merge(self._paths))
        return self._loaded[1]


@dataclass(frozen=True)
class _Merged:
    """Name → (the entry, the folder that its relative paths start from)."""

    contexts: dict[str, tuple[dict[str, Any], Path]]
    clusters: dict[str, tuple[dict[str, Any], Path]]
    users: dict[str, tuple[dict[str, Any], Path]]
    current: str | None


def _default_paths(environ: Mapping[str, str]) -> list[Path]:
    named = [Path(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return named or [Path(environ.get("HOME", "~")).expanduser() / ".kube/config"]


def _version(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _merge(paths: Sequence[Path]) -> _Merged:
    merged = _Merged({}, {}, {}, None)
    current: str | None = None
    for path in paths:
        data = _load(path)
        current = current or data.get("current-context") or None
        for section, entry_key, target in (
            ("contexts", "context", merged.contexts),
            ("clusters", "cluster", merged.clusters),
            ("users", "user", merged.users),
        ):
            for entry in data.get(section) or ():
                if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                    raise CloudRejected(INVALID, f"{path}: an entry of `{section}` has no name")
                target.setdefault(entry["name"], (dict(entry.get(entry_key) or {}), path.parent))
    return _Merged(merged.contexts, merged.clusters, merged.users, current)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CloudRejected(INVALID, f"{path} cannot be read: {error.strerror}") from error
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise CloudRejected(INVALID, f"{path} is not YAML: {error}") from error
    if data is not None and not isinstance(data, Mapping):
        raise CloudRejected(INVALID, f"{path} is not a kubeconfig: it is not a mapping")
    return data or {}


def _access(context: str, merged: _Merged, environ: Mapping[str, str]) -> ClusterAccess:
    entry, _ = merged.contexts[context]
    if entry.get("cluster") not in merged.clusters:
        raise CloudRejected(
            INVALID, f"context {context!r} names the cluster {entry.get('cluster')!r}, which is missing"
        )
    cluster, folder = merged.clusters[entry["cluster"]]
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise CloudRejected(INVALID, f"the cluster {entry['cluster']!r} has no server URL")
    ca = _content(cluster, "certificate-authority", folder)
    user, user_folder = merged.users.get(entry.get("user") or "", ({}, folder))
    return ClusterAccess(
        context=context,
        server=server.rstrip("/"),
        credentials=_credentials(user, user_folder, server, cluster, environ),
        namespace=entry.get("namespace") or None,
        ca=ca.decode() if ca else None,
        is_insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.get("tls-server-name") or None,
        proxy_url=cluster.get("proxy-url") or None,
    )


def _credentials(
    user: Mapping[str, Any], folder: Path, server: str, cluster: Mapping[str, Any], environ: Mapping[str, str]
) -> Credentials:
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    if "exec" in user:
        return ExecPlugin(user["exec"], folder, server, cluster, environ)
    if user.get("tokenFile"):
        return TokenFile(folder / str(user["tokenFile"]))
    if user.get("token"):
        return BearerToken(str(user["token"]))
    if certificate and key:
        return ClientCertificate(certificate, key)
    if user.get("username"):
        return PasswordLogin(str(user["username"]), str(user.get("password", "")))
    if "auth-provider" in user:
        fix = "replace `auth-provider` by an `exec` plugin, as `kubectl` requires since version 1.26"
        raise CloudRejected(INVALID, f"the user has only an `auth-provider`: {fix}")
    return Credentials()


def _content(entry: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    """The bytes of `NAME-data`, or of the file `NAME`."""
    try:
        if entry.get(f"{name}-data"):
            return base64.b64decode(entry[f"{name}-data"], validate=False)
        return (folder / str(entry[name])).read_bytes() if entry.get(name) else None
    except (OSError, ValueError) as error:
        raise CloudRejected(INVALID, f"`{name}` cannot be read: {error}") from error


def _account_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("PERDURE_SERVICE_ACCOUNT_DIR", str(SERVICE_ACCOUNT)))


def _in_cluster(environ: Mapping[str, str]) -> ClusterAccess:
    folder = _account_folder(environ)
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    read: Callable[[str], str | None] = lambda name: (  # noqa: E731
        (folder / name).read_text() if (folder / name).exists() else None
    )
    return ClusterAccess(
        context=IN_CLUSTER,
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        credentials=TokenFile(folder / "token"),
        namespace=(read("namespace") or "").strip() or None,
        ca=read("ca.crt"),
    )
