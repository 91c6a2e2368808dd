"""Which modules each part may load, measured by loading it."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.controller.api.routes.sections import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
DAEMON_ONLY = {"fastapi", "sqlmodel", "sqlalchemy", "alembic", "uvicorn", "structlog", "apscheduler", "websockets"}
CLOUD_SDKS = {"boto3", "botocore", "google", "azure", "kubernetes"}
PURE_STDLIB = {
    *("__future__", "bisect", "collections", "dataclasses", "difflib", "enum", "functools", "heapq", "itertools"),
    *("math", "operator", "re", "typing", "zlib"),
}


def loaded_by(module: str) -> set[str]:
    """Top-level packages, and ours by full name, in `sys.modules` after `import module` in a new interpreter."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    names = json.loads(answer.stdout.splitlines()[-1])
    return {name if name.startswith("perdure.") else name.partition(".")[0] for name in names}


@pytest.mark.parametrize("module", ["perdure.sdk", "perdure.cli.main"])
def test_client__loads_no_daemon_and_no_cloud_sdk(module: str) -> None:
    loaded = loaded_by(module)
    assert not loaded & (DAEMON_ONLY | CLOUD_SDKS)
    assert not {name for name in loaded if name.startswith(("perdure.controller", "perdure.agent"))}


NOT_AT_START = {
    *("alembic", "boto3", "botocore", "cryptography", "google.auth", "google.cloud", "azure.core", "kubernetes"),
    *("pydantic.v1", "rich", "unittest", "perdure.controller.hosting.provision", "perdure.recovery.simulate"),
    *(f"perdure.controller.api.{name}" for name in SECTIONS),
}


def test_daemon__that_serves_has_loaded_nothing_that_can_wait(tmp_path: Path) -> None:
    """What a daemon on a new home has loaded when it begins to serve: users and nodes wait for its imports."""
    (tmp_path / "config.yaml").write_text("local: false\naws: {}\ngcp: {}\n")
    serves = "sys.stdout.write(json.dumps(sorted(sys.modules))); sys.stdout.flush(); os._exit(0)"
    code = f"""
import json, os, sys
print(json.dumps(sorted(sys.modules)), flush=True)  # the environment's own start-up files load some
from perdure.controller.__main__ import main
from perdure.controller.runtime import endpoint_file
endpoint_file.publish = lambda *_: exec({serves!r})
main(["serve", "--home", {str(tmp_path)!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    before, after = (set(json.loads(line)) for line in done.stdout.splitlines())
    loaded = after - before
    assert {"fastapi", "sqlalchemy", "perdure.controller.api.app"} <= loaded
    assert not {name for name in loaded if any(f"{name}.".startswith(f"{one}.") for one in NOT_AT_START)}


def test_daemon__loads_nothing_before_it_is_used(tmp_path: Path) -> None:
    """structlog would load rich if it could; rich is installed here as a dependency of the API tests."""
    assert importlib.util.find_spec("rich") is not None
    words = ["credentials", "--home", str(tmp_path)]  # runs the daemon's code, and starts as `serve` does
    loaded = loaded_by(f"perdure.controller.__main__ as it; it.main({words})")
    assert {"sqlalchemy", "structlog", "perdure.controller.daemon"} <= loaded
    assert not loaded & {*CLOUD_SDKS, "alembic", "cryptography", "rich", "perdure.controller.hosting.provision"}


@pytest.mark.parametrize("module", ["perdure.checkpoint", "perdure.agent"])
def test_node_packages__need_only_the_standard_library(module: str) -> None:
    foreign = {name for name in loaded_by(module) if not name.startswith("perdure")} - sys.stdlib_module_names
    # Left by the environment's own start-up files (editable installs), not by the import.
    assert foreign <= loaded_by("sys") | {"__main__"}


def test_recovery__imports_only_pure_modules() -> None:
    """Stricter than the lint contract: that lists forbidden modules, this test the allowed ones."""
    sources = sorted((ROOT / "recovery/perdure/recovery").rglob("*.py"))
    assert len(sources) > 5
    impure = {
        f"{path.name}: {name}"
        for path in sources
        if "simulate" not in path.parts
        for name in imported(ast.parse(path.read_text()))
        if not name.startswith("perdure.recovery") and name.partition(".")[0] not in PURE_STDLIB
    }
    assert not impure


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module)
            case ast.ImportFrom(level=level) if level:
                names.add("a relative import")
    return names
