"""A container registry on this computer that wants a password, with images made of this computer's files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.helpers.ports import unused_port
from support.helpers.timing import wait_until

USER, PASSWORD = "ada", "s3cret"
_TOOLS = (
    *("sh", "cat", "echo", "env", "id", "sleep", "ps", "grep", "kill", "touch", "test", "rm", "mount", "pwd", "df"),
    *("ls", "mkdir", "tail", "head", "sed", "seq", "stat"),
)
_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


def missing_requirement() -> str | None:
    """Why no container can be run here; None if one can."""
    wanted = ("podman", "runc", "docker-registry", "htpasswd", "busybox", "nsenter")
    missing = [tool for tool in wanted if not shutil.which(tool)]
    if missing or os.geteuid() != 0:
        return f"containers need root and {', '.join(missing) or 'the tools that are here'}: run `make containers`"
    done = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False)
    return f"podman does not work here: {done.stderr.strip()[-300:]}" if done.returncode else None


@dataclass(frozen=True)
class ContainerRegistry:
    """`server`: its address, as images are named."""

    server: str
    folder: Path

    @property
    def login(self) -> dict[str, str]:
        """The variables of a task that may pull."""
        return {
            "SKYPILOT_DOCKER_SERVER": self.server,
            "SKYPILOT_DOCKER_USERNAME": USER,
            "SKYPILOT_DOCKER_PASSWORD": PASSWORD,
        }

    def push(self, name: str, *, env: Mapping[str, str] | None = None, with_bash: bool = True) -> None:
        """Make an image of busybox, and bash, and store it under `name`."""
        root = self.folder / "root"
        _make_root(root, with_bash=with_bash)
        archive = self.folder / "root.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        changes = [f"--change=ENV={key}={value}" for key, value in (env or {}).items()]
        image = f"{self.server}/{name}"
        self._podman("import", *changes, str(archive), image)
        self._podman("push", "--tls-verify=false", f"--creds={USER}:{PASSWORD}", image)
        shutil.rmtree(root)

    def _podman(self, *words: str) -> None:
        done = subprocess.run(["podman", *_storage(self.folder), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@contextmanager
def container_registry(folder: Path) -> Iterator[ContainerRegistry]:
    """Serve an empty registry."""
    port = unused_port()
    folder.mkdir()
    hashed = subprocess.run(["htpasswd", "-Bbn", USER, PASSWORD], check=True, capture_output=True).stdout
    (folder / "htpasswd").write_bytes(hashed)
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder, port=port))
    with open(folder / "log", "wb") as log:
        command = ["docker-registry", "serve", str(folder / "config.yml")]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), "the registry", 20)
        yield ContainerRegistry(f"127.0.0.1:{port}", folder)
    finally:
        server.terminate()
        server.wait()
        subprocess.run(["podman", *_storage(folder), "system", "reset", "--force"], check=False, capture_output=True)


def _storage(folder: Path) -> tuple[str, ...]:
    """Podman allows 50 characters for the second folder."""
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return ("--root", f"{folder}/images", "--runroot", f"/run/perdure-test-{digest}")


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5)
    except urllib.error.HTTPError:
        return True  # it wants a password
    except OSError:
        return False
    return True


def _make_root(root: Path, *, with_bash: bool) -> None:
    for name in ("bin", "etc", "tmp", "root", "usr/bin", "var/tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), root / "bin" / "busybox")
    for tool in _TOOLS:
        (root / "bin" / tool).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    if with_bash:
        shutil.copy("/bin/bash", root / "bin" / "bash")
        linked = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
