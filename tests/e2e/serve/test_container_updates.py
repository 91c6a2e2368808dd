"""A service in a container: its program changes on its machine, in a new container of the same image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import serve
from support.helpers.container_registry import ContainerRegistry, container_registry, missing_requirement
from support.helpers.services import HAS_HAPROXY, Caller, ServiceHost, running_services, service_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh"),
]

NAME, NUM_REPLICAS, PORT = "boxed", 2, 8080
# The image's busybox serves files: copies of one of the workdir, of a mount, and of what `setup` has made.
RUN = """
mkdir -p ~/www
cat file > ~/www/file
echo "$MODEL" > ~/www/model
cat /extra/file > ~/www/extra || true
test -e /made && cat /made > ~/www/made
exec busybox httpd -f -p "$SKYPILOT_NODE_IPS:8080" -h ~/www
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerRegistry]:
    if missing := missing_requirement():
        pytest.skip(missing)
    with container_registry(tmp_path_factory.mktemp("registry") / "registry") as registry:
        registry.push("box:1", env={"WORD": "from-the-image"})
        registry.push("box:2", env={"WORD": "from-the-other"})
        yield registry


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHost]:
    with running_services(tmp_path_factory.mktemp("home")) as one:
        yield one


def task(registry: ContainerRegistry, workdir: Path, model: str, *, image: str = "box:1", **more: Any) -> Any:
    login = dict(registry.login)
    secrets = {"SKYPILOT_DOCKER_PASSWORD": login.pop("SKYPILOT_DOCKER_PASSWORD")}
    return service_task(
        {"readiness_probe": "/model", "replicas": NUM_REPLICAS},
        run=RUN,
        setup='echo "$WORD of $MODEL" > /made',
        workdir=str(workdir),
        envs={"MODEL": model, **login},
        secrets=secrets,
        resources={"image_id": f"docker:{image}"},
        **more,
    )


def versions(sky: ServiceHost) -> list[tuple[int, int | None, int]]:
    return [(one["number"], one["job_id"], one["version"]) for one in sky.ready(NAME)]


def text(caller: Caller, path: str) -> tuple[int, str]:
    answer = caller.call(path)
    return answer.status, answer.body.decode().strip() if answer.status == 200 else ""


def test_update__of_a_program_in_a_container_keeps_the_machine(
    sky: ServiceHost, registry: ContainerRegistry, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "file").write_text("first\n")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "file").write_text("mounted\n")
    caller = sky.up(NAME, task(registry, tmp_path / "code", "one"), ready=NUM_REPLICAS)
    assert text(caller, "/made") == (200, "from-the-image of one")
    before = versions(sky)

    (tmp_path / "code" / "file").write_text("second\n")
    more = {"file_mounts": {"/extra": str(tmp_path / "extra")}}  # a path that the first container did not have
    serve.update(task(registry, tmp_path / "code", "two", **more), NAME, client=sky.client)
    changed = [(number, job, 2) for number, job, _ in before]
    sky.controller.until(lambda: versions(sky) == changed, "the new version on all machines")
    expected = {"/file": "second", "/model": "two", "/extra": "mounted", "/made": "from-the-image of two"}
    assert {path: text(caller, path) for path in expected} == {path: (200, word) for path, word in expected.items()}
    assert len(sky.get(NAME)["replicas"]) == NUM_REPLICAS, "no machine was bought"


def test_update__of_the_image_makes_new_machines(sky: ServiceHost, registry: ContainerRegistry, tmp_path: Path) -> None:
    before = {number for number, _, _ in versions(sky)}
    (tmp_path / "file").write_text("third\n")
    version = serve.update(task(registry, tmp_path, "three", image="box:2"), NAME, client=sky.client)["version"]
    sky.until(NAME, lambda _: [one[2] for one in versions(sky)] == [version] * NUM_REPLICAS, "the new version alone")
    assert not {number for number, _, _ in versions(sky)} & before
    caller = Caller(*serve.token(NAME, client=sky.client).values())
    assert text(caller, "/made") == (200, "from-the-other of three")
    sky.controller.perdure("serve", "down", NAME, "--yes")
    sky.controller.until(sky.no_machines, "the end of every machine")
