"""The computer of a test: a controller whose machines have stand-ins for what the internet and GPUs would provide.

A machine of the local cloud finds programs beside the controller's Python first. So the controller runs in a small
virtual environment whose `bin` holds the programs of `stand_ins/bin`; they look into `stand_ins` for what they would
download. It uses the packages of the environment that runs the tests.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from seeds.user import User
from support.helpers.controllers import ROOT, Controller, running_controller

STAND_INS = Path(__file__).with_name("stand_ins")
# What the daemon itself needs beside its Python.
OWN_PROGRAMS = ("rclone", "moto_server")


@dataclass(frozen=True)
class Computer:
    """A user's computer: `user` types commands there, `controller` looks at what they did."""

    user: User
    controller: Controller
    image: Path

    def set_epochs(self, number: int) -> None:
        """How long the next trainings of stand-ins take."""
        (self.image / "epochs").write_text(f"{number}\n")

    @property
    def home(self) -> Path:
        """The user's home folder."""
        return Path(self.user.environ["HOME"])

    @property
    def project(self) -> Path:
        return self.user.project

    def write(self, name: str, text: str) -> Path:
        """A file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@contextlib.contextmanager
def computer(folder: Path, config: str, environ: Mapping[str, str] | None = None) -> Iterator[Computer]:
    """A computer with a controller on which nothing has run. In the end nothing of it is left."""
    image, user_home = folder / "image", folder / "user"
    home, project = user_home / ".perdure", user_home / "project"
    make_image(image)
    home.mkdir(parents=True, mode=0o700)
    project.mkdir()
    (home / "config.yaml").write_text(config)
    path = f"{image / 'bin'}:{os.environ['PATH']}"
    more = {"HOME": str(user_home), "PATH": path, "TERM": "dumb", "NO_COLOR": "1", **(environ or {})}
    with running_controller(home, environ=more, program=(str(image / "bin/python"), "-m", "perdure.cli")) as controller:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "VIRTUAL_ENV"))}
        user = User(project, {**kept, **more, "PERDURE_HOME": str(home)})
        try:
            yield Computer(user, controller, image)
        finally:
            controller.perdure("down", "--all", "--yes", check=False)


def make_image(folder: Path) -> None:
    """A virtual environment with the packages of this one, with `perdure` and the stand-ins as programs."""
    shutil.copytree(STAND_INS, folder)
    own, bin_folder = Path(sys.prefix), folder / "bin"
    uv = bin_folder / "uv"
    uv.write_text(uv.read_text().replace("@IMAGE@", str(folder)))
    for name in ("python", "python3"):
        (bin_folder / name).symlink_to(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}")
    shutil.copy(own / "pyvenv.cfg", folder / "pyvenv.cfg")
    (bin_folder / "perdure").write_text(f'#!/bin/sh\nexec "{bin_folder}/python" -m perdure.cli "$@"\n')
    (bin_folder / "perdure").chmod(0o755)
    for name in OWN_PROGRAMS:
        (bin_folder / name).symlink_to(own / "bin" / name)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    added = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "tests.pth").write_text(f"{added}{folder / 'python'}\n")
    (folder / "envs").mkdir()
    (folder / "envs" / "ray").symlink_to(ROOT / "build" / "ray")
    _make_repository(folder / "github.com" / "pytorch" / "examples")


def _make_repository(folder: Path) -> None:
    """Make `folder`, which holds files, a git repository with one commit."""
    as_somebody = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
    for words in (("init", "--quiet"), ("add", "."), (*as_somebody, "commit", "--quiet", "-m", "Add examples")):
        subprocess.run(["git", *words], cwd=folder, check=True, env={"PATH": os.environ["PATH"], "HOME": str(folder)})
