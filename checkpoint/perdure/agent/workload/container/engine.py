"""The container engine of a machine: Docker where its daemon runs, or else Podman. Both have the same commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.agent.workload.container.image_name import ContainerSpec, is_on_this_machine, registry_of

DOCKER, PODMAN = "docker", "podman"
_SHORT_S, _START_S = 60.0, 300.0
_PROGRESS_S = 10.0
_RUNTIMES = ("crun", "runc")  # of Podman; crun refuses some machines' cgroups, which concern nothing here
_SYSTEMD = Path("/run/systemd/system")
_REMOVE_S = 20.0
# Words of an engine or a registry after which a repetition is of no use.
_PERMANENT = re.compile(
    r"unauthorized|authentication required|access denied|denied:|forbidden|invalid username/password|incorrect username"
    r"|manifest unknown|not found|name unknown|repository does not exist|invalid reference|no matching manifest"
    r"|no image found in (image index|manifest list)|unsupported mediatype|no space left",
    re.IGNORECASE,
)


class ContainerFailed(Exception):
    """The container cannot be started; the message has the engine's words. `is_transient`: a repetition may help."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


@dataclass(frozen=True)
class Engine:
    """`program`: its path. `storage`: of Podman, the folder of its images, or None for its own default."""

    kind: str
    program: str
    storage: Path | None = None

    def pull(
        self, spec: ContainerSpec, folder: Path, log: Callable[[str], None], is_cancelled: threading.Event
    ) -> None:
        """Pull the image, and log how far it is. Raises ContainerFailed.

        `folder`: for credentials, which are removed.
        """
        started_at = time.monotonic()
        auth = folder / "config.json"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        try:
            self._write_auth(auth, spec)
            output = self._pull(spec, folder, log, is_cancelled)
        finally:
            with suppress(FileNotFoundError):
                auth.unlink()
        if output is None:
            return
        size = self.inspect("image", spec.image, _SHORT_S).get("Size", 0)
        log(f"pulled {spec.image}: {size / 2**20:,.0f} MiB in {time.monotonic() - started_at:.0f} s")

    def start(self, name: str, spec: ContainerSpec, options: Sequence[str]) -> None:
        """Start the container, which then waits to be entered. Raises ContainerFailed."""
        words = ["--detach", "--name", name, *options, *spec.run_options]
        words += ["--entrypoint", "/bin/sh", spec.image, "-c", "while :; do sleep 3600; done"]
        if self.kind == DOCKER:
            self.remove(name)
            self._run(["run", *words], _START_S)
            return
        # Its own limits may be higher than this machine allows. They concern nothing: scripts are no children of it.
        words = ["run", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", *words]
        failures = []
        for runtime in filter(shutil.which, _RUNTIMES):
            self.remove(name)
            try:
                self._run(words, _START_S, options=[f"--runtime={runtime}"])
                return
            except ContainerFailed as failed:
                failures.append(failed)
        raise failures[-1] if failures else ContainerFailed(f"podman needs one of {', '.join(_RUNTIMES)}")

    def pid(self, name: str) -> int | None:
        """The first process of the running container, as this machine numbers it; None if it does not run."""
        try:
            state = self.inspect("container", name, _SHORT_S).get("State", {})
        except ContainerFailed:
            return None
        return int(state["Pid"]) or None if state.get("Running") else None

    def inspect(self, kind: str, name: str, timeout_s: float) -> dict[str, Any]:
        """The engine's description of a container or an image. Raises ContainerFailed."""
        listed = json.loads(self._run([kind, "inspect", name], timeout_s) or "[]")
        return dict(listed[0]) if listed else {}

    def remove(self, name: str) -> None:
        """End the container and remove it, if there is one."""
        command = ["rm", "--force", *(("--time", "0") if self.kind == PODMAN else ()), name]
        with suppress(ContainerFailed):
            self._run(command, _REMOVE_S)

    def _pull(
        self, spec: ContainerSpec, folder: Path, log: Callable[[str], None], is_cancelled: threading.Event
    ) -> str | None:
        """The engine's output; None if it was cancelled."""
        if self.kind == DOCKER:
            command = self._command(["pull", spec.image], options=["--config", str(folder)])
        else:
            words = ["pull", "--authfile", str(folder / "config.json")]
            if is_on_this_machine(registry_of(spec.image)):
                words.append("--tls-verify=false")
            command = self._command([*words, spec.image])
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env=_environ(),
        )  # fmt: skip
        lines: list[str] = []
        reader = threading.Thread(target=_read_lines, args=(process, lines), name="pull", daemon=True)
        reader.start()
        log(f"pulling {spec.image}")
        next_at = time.monotonic() + _PROGRESS_S
        while process.poll() is None:
            if is_cancelled.wait(0.1):
                process.kill()
                process.wait()
                return None
            if time.monotonic() >= next_at:
                log(f"pulling {spec.image}: {_progress(lines)}")
                next_at += _PROGRESS_S
        reader.join()
        output = "".join(lines)
        if process.returncode != 0:
            raise _failure(f"pulling {spec.image}", output)
        return output

    def _write_auth(self, path: Path, spec: ContainerSpec) -> None:
        text = spec.registry.auth_file() if spec.registry else '{"auths": {}}'
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def _run(self, words: Sequence[str], timeout_s: float, *, options: Sequence[str] = ()) -> str:
        try:
            done = subprocess.run(
                self._command(words, options=options), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=timeout_s, env=_environ(), check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ContainerFailed(f"{self.kind} {words[0]}: {error}", is_transient=True) from None
        if done.returncode != 0:
            raise _failure(f"{self.kind} {words[0]}", done.stderr or done.stdout)
        return done.stdout

    def _command(self, words: Sequence[str], *, options: Sequence[str] = ()) -> list[str]:
        own = []
        if self.storage is not None:
            # Podman allows 50 characters for the second folder.
            digest = hashlib.sha256(os.fsencode(self.storage)).hexdigest()[:12]
            own += ["--root", str(self.storage), "--runroot", f"/run/perdure-{digest}"]
        if self.kind == PODMAN and not _SYSTEMD.is_dir():
            own.append("--cgroup-manager=cgroupfs")
        return [self.program, *own, *options, *words]


def find_engine(*, storage: Path | None, only_podman: bool) -> Engine | None:
    """The engine of this machine, None if it has none.

    `storage`: where Podman shall keep images. `only_podman`: the daemon of Docker belongs to another machine.
    """
    docker, podman = shutil.which(DOCKER), shutil.which(PODMAN)
    if docker and not only_podman and _answers(docker):
        return Engine(DOCKER, docker)
    return Engine(PODMAN, podman, storage) if podman else None


def _answers(docker: str) -> bool:
    try:
        done = subprocess.run(
            [docker, "info", "--format", "{{.ID}}"], capture_output=True, timeout=_SHORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _environ() -> dict[str, str]:
    """Without the agent's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}


def _read_lines(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)


def _progress(lines: Sequence[str]) -> str:
    """How many layers are there, in the words of Docker (`Pull complete`) and of Podman (`Copying blob`)."""
    text = "".join(lines)
    total = len(set(re.findall(r"^(\w+): Pulling fs layer", text, re.MULTILINE)))
    done = len(set(re.findall(r"^(\w+): (?:Pull complete|Already exists)", text, re.MULTILINE)))
    if total:
        return f"{done} of {total} layers"
    blobs = len(set(re.findall(r"Copying blob (?:sha256:)?(\w+)", text)))
    return f"{blobs} layers have begun" if blobs else "asking the registry"


def _failure(what: str, output: str) -> ContainerFailed:
    """The error that ends the output: the last lines, which have the cause."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    words = " ".join(lines[-3:])[-1000:] or "it ended without a word"
    return ContainerFailed(f"{what}: {words}", is_transient=not _PERMANENT.search(words))
