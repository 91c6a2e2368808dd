"""The library is quick to import, and loads only the standard library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "checkpoint"
IMPORT = "from perdure.checkpoint import save_checkpoint, load_checkpoint, preempted"


def run(code: str, *, python: str = sys.executable, cwd: Path, cache: Path | None = None) -> str:
    # Bytecode is cached, as for any program that runs twice.
    env = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(cache or cwd / "pyc"), "PATH": os.defpath}
    done = subprocess.run([python, "-S", "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import__takes_at_most_25_ms(tmp_path: Path) -> None:
    timed = f"import time, typing; began = time.process_time(); {IMPORT}; print(time.process_time() - began)"
    run(timed, cwd=tmp_path)
    assert min(float(run(timed, cwd=tmp_path)) for _ in range(9)) <= 0.025


def test_import__loads_only_the_standard_library(tmp_path: Path) -> None:
    everything = (
        "import sys, json; import perdure.checkpoint as c; [getattr(c, name) for name in c.__all__];"
        "import perdure.checkpoint.__main__, perdure.checkpoint.save.function_save;"
        "print(json.dumps([m for m in sys.modules if m.partition('.')[0] not in sys.stdlib_module_names]))"
    )
    modules = json.loads(run(everything, cwd=tmp_path))
    assert {name for name in modules if not name.startswith("perdure") and name != "__main__"} == set()
    assert {name.split(".")[1] for name in modules if name.count(".") >= 1} == {"checkpoint"}


def test_import__lists_its_names_and_rejects_others() -> None:
    import perdure.checkpoint as package

    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


OLDEST = next(iter(Path.home().glob(".pyenv/versions/3.9.*/bin/python")), None) or shutil.which("python3.9")


@pytest.mark.skipif(OLDEST is None, reason="no Python 3.9 here")
def test_import__works_on_python_3_9(tmp_path: Path) -> None:
    program = """
import os
from perdure.checkpoint import latest, load_checkpoint, preempted, save_checkpoint, steps
os.makedirs("checkpoints")

@save_checkpoint("checkpoints", max_checkpoints=2)
def save(step, value):
    with open(f"checkpoints/model_{step}.pt", "w") as file:
        file.write(value)

@load_checkpoint("checkpoints")
def load(step):
    with open(f"checkpoints/model_{step}.pt") as file:
        return file.read()

for step in range(4):
    save(step, f"value {step}")
os.truncate("checkpoints/model_3.pt", 3)
print([load(), load.last_result.skipped, latest("checkpoints"), [i.state for i in steps("checkpoints")], preempted()])
"""
    shown = run(program, python=str(OLDEST), cwd=tmp_path)
    expected = ["value 2", ((3, "model_3.pt has 3 bytes instead of 7"),), 2, ["damaged", "committed"], False]
    assert shown.strip() == str(expected)


def test_load__runs_no_code_of_the_state(tmp_path: Path) -> None:
    """Write access to a bucket must not allow running a pickle on the nodes that read it."""
    program = (
        "import sys; from perdure.checkpoint import Checkpointer; c = Checkpointer('.');"
        "c.save(1, {'weights': b'abc', 'step': 1}); assert c.load()['step'] == 1;"
        "print([m for m in ('pickle', '_pickle', 'shelve') if m in sys.modules])"
    )
    assert run(program, cwd=tmp_path) == "[]\n"
