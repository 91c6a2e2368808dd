"""The container of this node's task: pulled and started before `setup`, entered by every script, removed at the end.

A script is no process of the engine. It is a child of its runner, as without a container, that has entered the
container's file system (`nsenter --mount`): signals, exit codes, background processes and logs are the same, and a
restarted agent finds everything where it was. Processes, network and shared memory are the machine's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from perdure.agent.workload.container.engine import PODMAN, ContainerFailed, Engine, find_engine
from perdure.agent.workload.container.image_name import ContainerSpec
from perdure.agent.workload.environment import home_dir
from perdure.agent.workload.tools.login import SH

ONLY_PODMAN = "PERDURE_ONLY_PODMAN"  # set on the local cloud: a container of Docker would outlive its machine
RETRY_S, GIVE_UP_S = 10.0, 900.0
_GPU_CHECK_S = 60.0
_INSTALL_S = 600.0
# Capabilities and profiles concern the container's own process alone: scripts keep those of the machine.
_OPTIONS = ("--pid=host", "--user=0")
_OF_ENGINE = ("container", "HOSTNAME", "HOME", "TERM")  # variables that engines set for themselves
_AMD = ("/dev/kfd", "/dev/dri")


class TaskContainer:
    """The container `name`. `folder`: the agent's folder for it. `binds`: folders and files that scripts share with it.

    `gpus`: how many the task counts on. Methods raise ContainerFailed.
    """

    def __init__(
        self,
        spec: ContainerSpec,
        name: str,
        folder: Path,
        *,
        gpus: int,
        environ: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._name = name
        self._folder = folder
        self._gpus = gpus
        self._environ = environ
        self._log = log
        self._cancelled = threading.Event()
        self._engine: Engine | None = None
        self._pid: int | None = None
        self._env: dict[str, str] | None = None

    def cancel(self) -> None:
        """Make `start` end soon: the container is not needed any more. From any thread."""
        self._cancelled.set()

    def start(self, binds: Sequence[str]) -> None:
        """Pull the image and start the container, or adopt the one that an earlier agent started.

        `binds`: paths of this machine that it sees under the same names, with what is mounted there now or later.
        """
        engine = self._engine = self._find_engine()
        self._pid = engine.pid(self._name)
        if self._pid is not None or self._cancelled.is_set():
            return
        self._pull(engine)
        if self._cancelled.is_set():
            return
        options = [*_OPTIONS, *self._shared_memory(), *self._devices(engine)]
        options += [f"--volume={path}:{path}{_propagation(path)}" for path in binds]
        engine.start(self._name, self._spec, [*options, *self._network()])
        self._pid = engine.pid(self._name)
        if self._pid is None:
            raise ContainerFailed(f"the container of {self._spec.image} ended at once")
        self._check_gpus()

    def environ(self) -> dict[str, str]:
        """The environment that the image and `run_options` set, with this machine's home folder."""
        if self._env is None:
            assert self._engine is not None
            entries = self._engine.inspect("container", self._name, 60.0).get("Config", {}).get("Env") or []
            pairs = (entry.partition("=") for entry in entries)
            self._env = {name: value for name, _, value in pairs if name not in _OF_ENGINE}
        return {**self._env, "HOME": str(home_dir(self._environ))}

    def enter(self) -> list[str]:
        """The beginning of a command that runs in the container."""
        assert self._pid is not None
        program = shutil.which("nsenter") or "nsenter"
        return [program, f"--target={self._pid}", "--mount", "--root", "--wd", "--"]

    @property
    def is_running(self) -> bool:
        return self._pid is not None

    @property
    def shell(self) -> str:
        """The shell of the image: bash, or else sh."""
        paths = (f"/proc/{self._pid}/root{path}" for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"))
        return "bash" if any(map(os.path.lexists, paths)) else SH

    def remove(self) -> None:
        """End the container. Nothing is raised: the machine goes, too."""
        if self._engine is not None:
            self._engine.remove(self._name)
            self._pid = None

    def _find_engine(self) -> Engine:
        only_podman = self._environ.get(ONLY_PODMAN) == "1"
        storage = self._folder / "storage" if only_podman else None
        engine = find_engine(storage=storage, only_podman=only_podman)
        if engine is None and self._environ.get("PERDURE_OWNS_MACHINE") == "1":
            self._install()
            engine = find_engine(storage=storage, only_podman=only_podman)
        if engine is not None:
            return engine
        wanted = "podman" if only_podman else "docker or podman"
        raise ContainerFailed(f"image_id docker:{self._spec.image} needs {wanted}, which this machine does not have")

    def _install(self) -> None:
        """Install an engine on a machine of our own whose image has none."""
        self._log("installing podman")
        for command in (("apt-get", "update"), ("apt-get", "install", "--yes", "podman", "crun")):
            try:
                subprocess.run(
                    command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
                    capture_output=True, timeout=_INSTALL_S, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                self._log(f"{' '.join(command)}: {error}")

    def _pull(self, engine: Engine) -> None:
        """Pull, and repeat while the registry or the network is at fault."""
        for tries_left in range(int(GIVE_UP_S / RETRY_S), -1, -1):
            try:
                return engine.pull(self._spec, self._folder, self._log, self._cancelled)
            except ContainerFailed as failed:
                if not failed.is_transient or not tries_left:
                    raise
                self._log(f"{failed}; trying again")
                if self._cancelled.wait(RETRY_S):
                    return None
        return None

    def _shared_memory(self) -> tuple[str, ...]:
        """The machine's /dev/shm: an engine's own has 64 MB, in which data loaders die."""
        return () if self._has_option("--ipc", "--shm-size") else ("--ipc=host",)

    def _network(self) -> tuple[str, ...]:
        return () if self._has_option("--net", "--network") else ("--net=host",)

    def _devices(self, engine: Engine) -> list[str]:
        options = ["--device=/dev/fuse"] if os.path.exists("/dev/fuse") else []
        options += [f"--device={path}" for path in _AMD if os.path.exists("/dev/kfd") and os.path.exists(path)]
        if _has_nvidia_gpus() and not self._has_option("--gpus", "--device=nvidia.com"):
            options += ["--device=nvidia.com/gpu=all"] if engine.kind == PODMAN else ["--gpus=all"]
        return options

    def _has_option(self, *names: str) -> bool:
        return any(option.startswith(names) for option in self._spec.run_options)

    def _check_gpus(self) -> None:
        """An engine may ignore the request for GPUs without a word."""
        if not self._gpus or not _has_nvidia_gpus():
            return
        try:
            done = subprocess.run(
                [*self.enter(), "nvidia-smi", "-L"], capture_output=True, text=True, timeout=_GPU_CHECK_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ContainerFailed(f"the GPUs are not visible in the container: {error}") from None
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip()[-300:]
            raise ContainerFailed(
                f"the GPUs are not visible in the container: {words}; NVIDIA's container toolkit is missing"
            )


def _propagation(path: str, table: str = "/proc/self/mountinfo") -> str:
    """Passes on what is mounted below `path` later, where this machine can: Docker refuses it for a private mount."""
    mount, is_shared = "", False
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(" ")
            point = fields[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
            if len(point) >= len(mount) and f"{path}/".startswith(f"{point.rstrip('/')}/"):
                mount, is_shared = point, any(word.startswith(("shared:", "master:")) for word in fields[6:9])
    return ":rslave" if is_shared else ""


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths, without those that lie below another one."""
    kept: list[str] = []
    for path in sorted({path.rstrip("/") for path in paths}):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return kept


def _has_nvidia_gpus() -> bool:
    return shutil.which("nvidia-smi") is not None and os.path.exists("/dev/nvidiactl")
