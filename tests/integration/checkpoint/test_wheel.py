"""The wheel `perdure-checkpoint`, installed into new environments of every Python on this machine."""

from __future__ import annotations

import email.message
import email.parser
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from perdure.agent import VERSION
from support.helpers.timing import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")

PROGRAM = """
    import array, json, os, sys
    from perdure.checkpoint import Checkpointer, load_checkpoint, save_checkpoint, steps
    root = sys.argv[1]
    with Checkpointer(root + "/own", keep=2, asynchronous=True) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {"step": step, "data": bytearray(b"x" * 3_000_000), "nested": [(1, None), {2.5}]})
        checkpointer.wait()
        (newest,) = [one for one in os.listdir(root + "/own") if "-000000000003-" in one]
        with open(os.path.join(root, "own", newest), "r+b") as file:
            file.seek(-1, 2)
            file.write(b"y")
        own = checkpointer.load()
    @save_checkpoint(save_dir=root + "/functions", max_checkpoints=2)
    def save(step):
        with open(f"{root}/functions/model_{step}.bin", "wb") as file:
            file.write(b"%d" % step)
    @load_checkpoint(save_dir=root + "/functions")
    def load(step):
        with open(f"{root}/functions/model_{step}.bin", "rb") as file:
            return int(file.read())
    for step in (1, 2, 3):
        save(step)
    print(json.dumps({
        "own": [own["step"], type(own["data"]).__name__, own["nested"][0], sorted(own["nested"][1])],
        "skipped": [step for step, _ in checkpointer.last_result.skipped],
        "functions": [load(), [one.step for one in steps(root + "/functions")]],
        "modules": sorted(name.split(".")[1] for name in sys.modules if name.count(".") == 1 and "perdure." in name),
        "python": list(sys.version_info[:2]),
    }))
"""


def interpreter(version: str) -> str:
    """A Python of this version; skips the test if there is none."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")]
    for python in filter(None, found):
        # A version manager's shim may exist but not run.
        if subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
            return str(python)
    pytest.skip(f"no Python {version} on this machine")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), "./checkpoint"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(120), check=False)
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("the build backend cannot be downloaded")
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode())


def test_wheel__holds_the_library_alone_and_needs_nothing(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == ("perdure-checkpoint", VERSION)
    assert metadata["Requires-Python"] == ">=3.9"
    assert metadata.get_all("Requires-Dist") == ["xxhash>=3.4; extra == 'fast'"]
    with zipfile.ZipFile(wheel) as archive:
        modules = [one for one in archive.namelist() if ".dist-info/" not in one]
    folder = ROOT / "checkpoint/perdure/checkpoint"
    sources = [*folder.rglob("*.py"), folder / "py.typed"]
    assert sorted(modules) == sorted(str(path.relative_to(ROOT / "checkpoint")) for path in sources)


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel__installs_and_works(version: str, wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([interpreter(version), "-m", "venv", environment], check=True, timeout=scaled(120))
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, timeout=scaled(120))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PERDURE_"))}
    command = [python, "-W", "error", "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=scaled(60), check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "own": [2, "bytearray", [1, None], [2.5]],
        "skipped": [3],
        "functions": [3, [3, 2]],
        "modules": ["checkpoint"],
        "python": [int(part) for part in version.split(".")],
    }
    ls = [python, "-m", "perdure.checkpoint", "ls", str(tmp_path / "functions"), "--json"]
    listed = subprocess.run(ls, env=env, capture_output=True, text=True, timeout=scaled(60), check=True, cwd="/")
    assert [json.loads(line)["step"] for line in listed.stdout.splitlines()] == [3, 2]
