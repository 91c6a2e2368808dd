"""The container of a task with each engine: pulled, entered, adopted by a restarted agent, and removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perdure.agent.workload.container.engine import ContainerFailed, find_engine
from perdure.agent.workload.container.image_name import ContainerSpec
from perdure.agent.workload.container.task_container import ONLY_PODMAN, TaskContainer
from support.helpers.container_registry import ContainerRegistry, container_registry, missing_requirement
from support.helpers.timing import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerRegistry]:
    if missing := missing_requirement():
        pytest.skip(missing)
    with container_registry(tmp_path_factory.mktemp("registry") / "registry") as registry:
        registry.push("box:1", env={"WORD": "from-the-image"})
        yield registry


@pytest.fixture(params=["docker", "podman"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of an agent that finds this engine."""
    if request.param == "podman":
        yield {**os.environ, ONLY_PODMAN: "1"}
        unmount_below(tmp_path)
        return
    if not shutil.which("dockerd") or not shutil.which("docker"):
        pytest.skip("there is no dockerd here: run `make containers`")
    socket, root = f"unix://{tmp_path}/docker.sock", f"--data-root={tmp_path}/data"
    options = (f"--exec-root={tmp_path}/exec", f"--pidfile={tmp_path}/pid", "--bridge=none", "--iptables=false")
    with open(tmp_path / "dockerd.log", "wb") as log:
        command = ["dockerd", root, f"--host={socket}", *options, "--ip6tables=false"]
        daemon = subprocess.Popen([*command, "--exec-opt=native.cgroupdriver=cgroupfs"], stdout=log, stderr=log)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", socket)

            def answers() -> bool:
                engine = find_engine(storage=None, only_podman=False)
                return daemon.poll() is not None or (engine is not None and engine.kind == "docker")

            wait_until(answers, "dockerd", 60)
            if daemon.poll() is not None:
                pytest.skip(f"dockerd cannot run here: {(tmp_path / 'dockerd.log').read_text()[-300:]}")
            yield dict(os.environ)
    finally:
        daemon.terminate()
        daemon.wait()
        unmount_below(tmp_path)


def unmount_below(folder: Path) -> None:
    """Podman leaves its storage mounted on itself, and dockerd what was in use."""
    for partition in psutil.disk_partitions(all=True):
        if partition.mountpoint.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", partition.mountpoint], check=True)


def container(registry: ContainerRegistry, folder: Path, environ: dict[str, str], **changes: str) -> TaskContainer:
    login = registry.login
    spec = ContainerSpec.parse(
        {
            "image": changes.get("image", "box:1"),
            "run_options": ["-e", "OPTION=yes"],
            "registry": {
                "server": login["SKYPILOT_DOCKER_SERVER"],
                "username": login["SKYPILOT_DOCKER_USERNAME"],
                "password": changes.get("password", login["SKYPILOT_DOCKER_PASSWORD"]),
            },
        }
    )
    return TaskContainer(spec, f"perdure-test-{os.getpid()}", folder, gpus=0, environ=environ, log=print)


def test_container__is_entered_adopted_and_removed(
    registry: ContainerRegistry, environ: dict[str, str], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    box = container(registry, tmp_path / "agent", environ)
    box.start([str(shared)])
    try:
        assert not list((tmp_path / "agent").glob("config.json")), "the password is on disk during the pull alone"
        env = box.environ()
        assert (env["WORD"], env["OPTION"], env["HOME"]) == ("from-the-image", "yes", environ["HOME"])
        script = f"echo $WORD > {shared}/file; [ -e /bin/busybox ] && ! [ -e /usr/bin/apt ] && exit 5"
        assert subprocess.run([*box.enter(), box.shell, "-c", script], env=env, check=False).returncode == 5
        assert (shared / "file").read_text() == "from-the-image\n"

        trap = f"trap 'echo told > {shared}/told; exit 0' TERM; touch {shared}/up; while :; do sleep 0.1; done"
        program = subprocess.Popen([*box.enter(), box.shell, "-c", trap], env=env)
        wait_until((shared / "up").exists, "the program", 20)
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 0
        assert (shared / "told").exists()

        again = container(registry, tmp_path / "agent", environ)
        again.start([])
        assert again.enter() == box.enter(), "a restarted agent pulls and starts nothing"
    finally:
        box.remove()
    engine = find_engine(storage=tmp_path / "agent" / "storage", only_podman=ONLY_PODMAN in environ)
    assert engine is not None
    assert engine.pid(f"perdure-test-{os.getpid()}") is None


@pytest.mark.parametrize(
    ("changes", "words"), [({"password": "wrong"}, "unauthorized"), ({"image": "box:9"}, "manifest unknown")]
)
def test_pull__fails_at_once_with_the_words_of_the_registry(
    registry: ContainerRegistry, environ: dict[str, str], tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    with pytest.raises(ContainerFailed, match=words) as caught:
        container(registry, tmp_path / "agent", environ, **changes).start([])
    assert not caught.value.is_transient
    assert "s3cret" not in str(caught.value)
