"""Names of container images, and who may pull them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DOCKER_HUB = "docker.io"
# Under this name, Docker stores the credentials of its own registry.
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True)
class Registry:
    """Credentials of a registry. `server`: its host name, with a port if it has one."""

    server: str
    username: str
    password: str = field(repr=False)

    def auth_file(self) -> str:
        """What Docker and Podman read credentials from."""
        token = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        servers = [self.server, _DOCKER_HUB_KEY] if self.server == DOCKER_HUB else [self.server]
        return json.dumps({"auths": {server: {"auth": token} for server in servers}})


@dataclass(frozen=True)
class ContainerSpec:
    """The container of a task, as the node spec has it. `run_options`: arguments of `docker run`."""

    image: str
    run_options: tuple[str, ...] = ()
    registry: Registry | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> ContainerSpec:
        registry = raw.get("registry")
        return cls(
            full_name(str(raw["image"]), registry["server"] if registry else None),
            tuple(str(option) for option in raw.get("run_options") or ()),
            Registry(_server(registry["server"]), registry["username"], registry["password"]) if registry else None,
        )


def full_name(image: str, server: str | None = None) -> str:
    """The image with its registry: `server`, unless the name begins with one, or else Docker Hub."""
    first, slash, _ = image.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    if server and not image.startswith(f"{_server(server)}/"):
        return f"{_server(server)}/{image}"
    if has_registry:
        return image
    return f"{DOCKER_HUB}/{image}" if slash else f"{DOCKER_HUB}/library/{image}"


def registry_of(image: str) -> str:
    """The registry in a full name."""
    return image.partition("/")[0]


def is_on_this_machine(server: str) -> bool:
    """Whether a registry is reached over the loopback, where Docker uses HTTP."""
    host = server.rpartition(":")[0] or server
    return host in ("localhost", "[::1]") or host.startswith("127.")


def _server(text: str) -> str:
    """A host name, also from a URL such as https://index.docker.io/v1/."""
    host = text.split("://", 1)[-1].split("/", 1)[0]
    return DOCKER_HUB if host in ("index.docker.io", "registry-1.docker.io", "hub.docker.com") else host
