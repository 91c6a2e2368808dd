"""A container as processes on this computer: its command is the first process of a PID namespace of its own.

So it receives SIGTERM as a container's first process does, reaps orphans, and all processes end with it. Its emptyDir
volumes are folders, mounted where the pod mounts them, in a mount namespace of its own. Its /dev has what every
container has, and its host name is the pod's. It has /dev/fuse only if the pod is privileged, or requests the device of
a plugin.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

Object = dict[str, Any]
# This computer's, which an image without Python does not have.
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3")
_UNSHARE = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount", "--mount-proc", "--uts"]


# What a container runtime gives to every container.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class ContainerProcess:
    """Starts at once. `folder` holds the pod's volumes, its home and its output."""

    def __init__(self, pod: Object, folder: Path, env: dict[str, str], *, has_python: bool) -> None:
        self._folder = folder
        container = pod["spec"]["containers"][0]
        folder.mkdir(parents=True)
        home = folder / "home"
        home.mkdir()
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        if has_python:
            (bin_folder / "python3").symlink_to(sys.executable)
        mounts = [f"hostname {shlex.quote(pod['metadata']['name'])}", self._devices(has_fuse=_has_fuse(container))]
        mounts += [self._mount(one, pod) for one in container.get("volumeMounts") or ()]
        self.termination_log = folder / "termination-log"
        self.termination_log.touch()
        if not has_python:
            mounts += [f"mount --bind /dev/null {python}" for python in _PYTHONS if os.path.exists(python)]
        command = shlex.join(container["command"])
        if (user := _user(pod)) is not None:
            # The test's own folders are closed to that user: only what is mounted is there.
            command = f"setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs {command}"
            mounts.append("cd /")
        script = "\n".join(["set -e", *filter(None, mounts), f"exec {command}"])
        path = f"{bin_folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._output = open(folder / "output.log", "wb")  # noqa: SIM115 - closed with the container
        self._process = subprocess.Popen(
            [*(["unshare", "--user", "--map-root-user"] if os.geteuid() else []), *_UNSHARE, "/bin/sh", "-c", script],
            env={"HOME": str(home), "PATH": path, "HOSTNAME": pod["metadata"]["name"], **env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=home,
        )

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._output.close()
        return 128 - code if code < 0 else code

    def stop(self) -> None:
        """SIGTERM to the container's first process."""
        first = self._first_process()
        if first is not None:
            os.kill(first, signal.SIGTERM)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def freeze(self, *, thaw: bool = False) -> None:
        """Stop every process of the container, or let them go on, as a machine that is suspended or out of memory."""
        for process in _descendants(self._process.pid):
            os.kill(process, signal.SIGCONT if thaw else signal.SIGSTOP)

    def output(self) -> str:
        return (self._folder / "output.log").read_text(errors="replace")

    def _first_process(self) -> int | None:
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def _devices(self, *, has_fuse: bool) -> str:
        """The commands that give the container a /dev of its own."""
        dev = shlex.quote(str(self._folder / "dev"))
        devices = [*_DEVICES, *(["fuse"] if has_fuse else [])]
        lines = [f"mkdir {dev}", f"mount -t tmpfs none {dev}", f"mkdir {dev}/shm {dev}/pts"]
        for name in devices:
            if os.path.exists(f"/dev/{name}"):
                lines += [f"touch {dev}/{name}", f"mount --bind /dev/{name} {dev}/{name}"]
        lines += [f"mount --rbind /dev/pts {dev}/pts", f"ln -s pts/ptmx {dev}/ptmx", f"ln -s /proc/self/fd {dev}/fd"]
        lines += [f"ln -s /proc/self/fd/{n} {dev}/{name}" for n, name in enumerate(("stdin", "stdout", "stderr"))]
        return "\n".join([*lines, f"mount --rbind {dev} /dev"])

    def _mount(self, mount: Object, pod: Object) -> str:
        volume = next(one for one in pod["spec"]["volumes"] if one["name"] == mount["name"])
        source = self._folder / "volumes" / volume["name"]
        source.mkdir(parents=True, exist_ok=True)
        source.chmod(0o2777)  # as an emptyDir: everybody may write, and it is root's
        if "emptyDir" not in volume:
            raise ValueError(f"this fake mounts emptyDir volumes only, not {volume}")
        target = mount["mountPath"]
        parent = os.path.dirname(target)
        hide = (
            "" if os.path.isdir(target) else f"mount -t tmpfs none {shlex.quote(parent)}; mkdir {shlex.quote(target)}; "
        )
        return f"{hide}mount --bind {shlex.quote(str(source))} {shlex.quote(target)}"


def _user(pod: Object) -> int | None:
    """The user that the container runs as; None: root, or whoever runs the test."""
    of_container = (pod["spec"]["containers"][0].get("securityContext") or {}).get("runAsUser")
    user = of_container or (pod["spec"].get("securityContext") or {}).get("runAsUser")
    return user if os.geteuid() == 0 else None


def _descendants(parent: int) -> list[int]:
    try:
        children = [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []
    return [one for child in children for one in (child, *_descendants(child))]


def _has_fuse(container: Object) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    is_privileged = (container.get("securityContext") or {}).get("privileged") is True
    return is_privileged or any(name.rpartition("/")[2].endswith("fuse") for name in limits)
