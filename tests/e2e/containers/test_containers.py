"""Tasks in containers, on the local cloud, with a real engine and a registry of this computer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.helpers.container_registry import ContainerRegistry, container_registry, missing_requirement
from support.helpers.controllers import Controller, running_controller

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerRegistry]:
    if missing := missing_requirement():
        pytest.skip(missing)
    with container_registry(tmp_path_factory.mktemp("registry") / "registry") as registry:
        registry.push("box:1", env={"WORD": "from-the-image", "PATH": "/opt/own/bin:/bin:/usr/bin"})
        registry.push("plain:1", with_bash=False)
        yield registry


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with running_controller(tmp_path_factory.mktemp("containers") / "home") as controller:
        yield controller


def launch(controller: Controller, registry: ContainerRegistry, image: str, **task: Any) -> int:
    """Launch a task in the image; returns the job's ID."""
    login = {**registry.login, **task.pop("login", {})}
    secrets = {"SKYPILOT_DOCKER_PASSWORD": login.pop("SKYPILOT_DOCKER_PASSWORD")}
    resources = {"image_id": f"docker:{image}", **task.pop("resources", {})}
    config = {"resources": resources, "envs": login | task.pop("envs", {}), "secrets": secrets, **task}
    return int(controller.client.submit("box", [config], user="", key=config["name"])["job_id"])


def ended(controller: Controller, job: int) -> dict[str, Any]:
    def reached() -> bool:
        return str(controller.job(job)["status"]).startswith(("SUCCEEDED", "FAILED", "CANCELLED"))

    controller.until(reached, f"the end of job {job}")
    return controller.job(job)


def test_scripts__run_in_the_container(controller: Controller, registry: ContainerRegistry) -> None:
    """With the image's environment, the task's files and buckets, and the machine's shared memory and network."""
    job = launch(
        controller,
        registry,
        "box:1",
        name="inside",
        envs={"A": "b"},
        config={"docker": {"run_options": ["-e OPTION=yes"]}},
        file_mounts={"/ckpt": {"name": "inside", "store": "local", "mode": "MOUNT_CACHED"}},
        setup='echo "$WORD, $OPTION, $A, ${SKYPILOT_DOCKER_PASSWORD-hidden}"; echo made > /made; id -u; pwd',
        run='cat /made; echo saved > /ckpt/file; echo "$PATH"; df -m /dev/shm | tail -n 1; type -P uv; exit 3',
    )
    shown = ended(controller, job)
    log = controller.log(job)
    assert shown["status"] == "FAILED", log
    assert "from-the-image, yes, b, hidden\n0\n/home/perdure/sky_workdir\nmade\n" in log
    assert "/opt/own/bin:/bin:/usr/bin" in log, "the image's PATH is kept"
    assert int(log.split(" /dev/shm")[0].split()[-4]) > 64, "an engine's own has 64 MB"
    assert "/var/lib/perdure/tools/bin/uv\n" in log, "what the image lacks, the machine offers"
    assert "pulled " in log
    assert "exited with code 3" in str(shown)
    assert (controller.home / "local/buckets/inside/file").read_text() == "saved\n"


def test_preemption__reaches_the_program_in_the_container_after_the_agent_was_killed(
    controller: Controller, registry: ContainerRegistry
) -> None:
    run = """
if [ -e /ckpt/step ]; then echo "resumed at $(cat /ckpt/step)"; exit 0; fi
trap 'echo 7 > /ckpt/step; echo told; exit 0' TERM
echo running
while :; do sleep 0.1; done
"""
    mounts = {"/ckpt": {"name": "resumed", "store": "local", "mode": "MOUNT_CACHED"}}
    job = launch(controller, registry, "box:1", name="preempted", run=run, file_mounts=mounts)
    controller.until(lambda: "running\n" in controller.log(job), "the first attempt")
    inside = controller.perdure("jobs", "exec", job, "--", "sh", "-c", "echo $WORD; pwd; ls /bin/busybox")
    assert inside.stdout == "from-the-image\n/home/perdure/sky_workdir\n/bin/busybox\n"

    (machine,) = (path.parent for path in controller.home.glob("local/instances/*/machine"))
    agents = [one for one in psutil.process_iter() if _is_agent_of(one, machine)]
    assert len(agents) == 1
    agents[0].kill()  # the machine starts it again, and it adopts the container
    calls = "connected to the controller"
    controller.until(lambda: (machine / "agent.log").read_text().count(calls) == 2, "the next agent")
    controller.perdure("jobs", "preempt", job, "--notice", "20")
    assert ended(controller, job)["status"] == "SUCCEEDED"
    log = controller.log(job)
    assert "told\n" in log
    assert "resumed at 7\n" in log


@pytest.mark.parametrize(
    ("image", "login", "words"),
    [
        ("box:1", {"SKYPILOT_DOCKER_PASSWORD": "wrong"}, "unauthorized"),
        ("box:2", {}, "manifest unknown"),
    ],
    ids=["password", "tag"],
)
def test_image__that_cannot_be_pulled_ends_the_job(
    controller: Controller, registry: ContainerRegistry, image: str, login: dict[str, str], words: str
) -> None:
    job = launch(controller, registry, image, name=f"refused-{words[:4]}", run="echo ran", login=login)
    shown = ended(controller, job)
    assert shown["status"] == "FAILED_PRECHECKS", shown
    assert words in str(shown), "the engine's own words"
    assert len(shown["attempts"]) == 1, "another machine would fail in the same way"
    assert "ran\n" not in controller.log(job)


def test_image__without_bash_runs_sh(controller: Controller, registry: ContainerRegistry) -> None:
    run = "echo ${BASH_VERSION-no bash}; sleep 600 & exit 0"
    job = launch(controller, registry, "plain:1", name="plain", run=run)
    assert ended(controller, job)["status"] == "SUCCEEDED"
    assert "no bash\n" in controller.log(job)


def test_machine__leaves_nothing_of_the_container(controller: Controller, registry: ContainerRegistry) -> None:
    """The storage of images and the container's processes end with the machine."""
    job = launch(controller, registry, "box:1", name="leftovers", run="echo done")
    ended(controller, job)
    instances = controller.home / "local" / "instances"
    controller.until(lambda: not list(instances.glob("*/machine")), "the end of the machines")
    assert not [process for process in psutil.process_iter() if f"perdure-{job}-0-" in " ".join(_words(process))]


def _is_agent_of(process: psutil.Process, machine: Path) -> bool:
    with suppress(psutil.Error):
        is_agent = any(word.startswith("/run/perdure/artifacts/") for word in process.cmdline()[1:2])
        return is_agent and any(str(machine) in _words(above) for above in process.parents())
    return False


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []
