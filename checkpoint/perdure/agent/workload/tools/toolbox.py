"""Installs the tools of `tool.sh` on this node, and fetches uv when the first of them needs it.

The tools cost nothing until they are used: no environment is made and nothing is fetched for a job that needs neither.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from perdure.agent.storage.fetch import FetchCancelled, Fetcher, FetchFailed
from perdure.agent.workload.environment import home_dir

OWN_ENV = "PERDURE_OWN_ENV"  # set where the Python beside the agent is not the job's, as on the local cloud
TOOLS = ("python", "python3", "pip", "pip3", "uv", "uvx", "conda", "sudo")
_POLL_S = 0.1
_ACTIVATE = 'conda activate "$@"\n'  # for `source activate NAME`


def uv_artifact() -> str:
    """The name of the artifact that is uv for this machine's processor."""
    return f"uv-{platform.machine()}"


class Toolbox:
    """The tools of one node, in the folder `root`.

    `library`: the folder of the package `perdure`. `python`: the version that the task wants, or None for the image's.
    `in_container`: the image is that of a container, of which the agent's own Python is no part.
    `uv`: the digest of the artifact, or None if the controller has none for this processor.
    """

    def __init__(
        self,
        root: Path,
        library: Path,
        fetcher: Fetcher,
        *,
        python: str | None,
        in_container: bool,
        uv: str | None,
        environ: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        self._root = root
        self._sources = library / "perdure" / "agent" / "workload" / "tools"
        self._fetcher = fetcher
        self._python = python
        self._in_container = in_container
        self._uv = uv
        self._environ = environ
        self._log = log

    def install(self) -> None:
        """Write the tools, or write them again. A failure is logged: the script then has what the image has."""
        try:
            self._install()
        except OSError as error:
            self._log(f"the tools of this node cannot be installed: {error}")
            return
        threading.Thread(target=self._serve, name="tools", daemon=True).start()

    def _install(self) -> None:
        programs, profile = self._root / "bin", self._root / "etc" / "profile.d"
        programs.mkdir(parents=True, exist_ok=True)
        profile.mkdir(parents=True, exist_ok=True)
        tool = (self._sources / "tool.sh").read_text().replace("@TOOLS@", shlex.quote(str(self._root)))
        self._write(self._root / "settings", self._settings())
        self._write(self._root / "login.sh", (self._sources / "login.sh").read_text())
        self._write(profile / "conda.sh", (self._sources / "conda.sh").read_text())
        self._write(programs / "activate", _ACTIVATE)
        self._write(self._root / "tool.sh", tool, mode=0o755)
        for name in (*TOOLS, *self._versioned_names()):
            link = programs / name
            if not link.is_symlink():
                link.symlink_to(self._root / "tool.sh")
        with suppress(FileNotFoundError):
            (self._root / "uv.failed").unlink()

    def _settings(self) -> str:
        is_virtual = sys.prefix != sys.base_prefix
        name = f"perdure-env-{self._python}" if self._python else "perdure-env"
        is_on_machine = not self._in_container
        values = {
            "base": (sys.executable or "python3") if is_on_machine else "",
            "env": str(home_dir(self._environ) / name),
            "python": self._python or "",
            "own_env": "1" if self._python or (is_on_machine and self._environ.get(OWN_ENV) == "1") else "",
            # `--system-site-packages` of an environment on another one reaches the packages below both only.
            "parent_site": sysconfig.get_path("purelib") if is_on_machine and is_virtual else "",
            "has_pip": "1" if is_on_machine and importlib.util.find_spec("pip") else "",
        }
        return "".join(f"perdure_{name}={shlex.quote(value)}\n" for name, value in values.items())

    def _versioned_names(self) -> tuple[str, ...]:
        version = re.match(r"3\.\d+", self._python or "")
        return (f"python{version[0]}" if version else f"python3.{sys.version_info[1]}",)

    def _write(self, path: Path, text: str, *, mode: int = 0o644) -> None:
        """Write a file that others may run or read at this moment."""
        new = path.with_name(f"{path.name}.new")
        new.write_text(text)
        new.chmod(mode)
        os.replace(new, path)

    def _serve(self) -> None:
        """Wait until a tool needs uv, then fetch it. Ends once it is there, or cannot be had."""
        wanted, failed = self._root / "uv.wanted", self._root / "uv.failed"
        while not wanted.exists():
            time.sleep(_POLL_S)
        try:
            self._link(self._root / "uv", self._find_uv())
        except FetchCancelled:
            return
        except (FetchFailed, OSError) as error:
            self._log(f"uv is not available: {error}")
            with suppress(OSError):
                self._write(failed, f"{error}\n")

    def _find_uv(self) -> Path:
        if self._uv is None:
            raise FetchFailed(f"the controller has none for {platform.machine()}")
        return self._fetcher.fetch_tool(self._uv)

    def _link(self, link: Path, program: Path) -> None:
        new = link.with_name(f"{link.name}.new")
        with suppress(FileNotFoundError):
            new.unlink()
        new.symlink_to(program)
        os.replace(new, link)
