"""Names of images, and the credentials of their registries."""

from __future__ import annotations

import base64
import json

import pytest

from perdure.agent.workload.container.image_name import ContainerSpec, Registry, full_name, is_on_this_machine


@pytest.mark.parametrize(
    ("image", "server", "expected"),
    [
        ("ubuntu:22.04", None, "docker.io/library/ubuntu:22.04"),
        ("pytorch/pytorch", None, "docker.io/pytorch/pytorch"),
        ("nvcr.io/nvidia/pytorch:24.10-py3", None, "nvcr.io/nvidia/pytorch:24.10-py3"),
        ("localhost/box", None, "localhost/box"),
        ("host:5000/box@sha256:ab", None, "host:5000/box@sha256:ab"),
        ("me/box", "registry.example.com", "registry.example.com/me/box"),
        ("registry.example.com/me/box", "registry.example.com", "registry.example.com/me/box"),
        ("me/box", "https://index.docker.io/v1/", "docker.io/me/box"),
    ],
)
def test_full_name__has_a_registry(image: str, server: str | None, expected: str) -> None:
    assert full_name(image, server) == expected


def test_auth_file__is_what_engines_read() -> None:
    registry = Registry("docker.io", "ada", "s3:cret")
    auths = json.loads(registry.auth_file())["auths"]
    assert auths.keys() == {"docker.io", "https://index.docker.io/v1/"}, "Docker has another name for its own"
    assert base64.b64decode(auths["docker.io"]["auth"]) == b"ada:s3:cret"
    assert "s3:cret" not in repr(ContainerSpec("box", (), registry))


@pytest.mark.parametrize(
    ("server", "expected"),
    [("localhost:5000", True), ("127.0.0.1:5000", True), ("127.0.0.1", True), ("localhost.example.com", False)],
)
def test_registry_of_this_machine__is_reached_without_tls(server: str, expected: bool) -> None:
    assert is_on_this_machine(server) is expected
