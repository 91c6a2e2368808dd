"""The code on a node runs on Python 3.9, the oldest version in user images."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 9)
SOURCES = sorted((ROOT / "checkpoint/perdure").rglob("*.py"))
# Names that 3.9's standard library lacks: a grammar check does not see them.
NEWER_NAMES = {"StrEnum", "TaskGroup", "ExceptionGroup", "Self", "assert_never", "pairwise", "UTC"}
NEWER_MODULES = {"tomllib"}
NEWER_ARGUMENTS = {("dataclass", "slots"), ("dataclass", "kw_only"), ("zip", "strict"), ("mkdtemp", "delete")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "checkpoint/perdure")))
def test_node_source__is_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), filename=str(path), feature_version=OLDEST)
    assert not list(newer(tree))


@pytest.mark.parametrize(
    "source",
    [
        "match x:\n    case 1: pass",
        "try: pass\nexcept* ValueError: pass",
    ],
)
def test_node_source_check__detects_newer_grammar(source: str) -> None:
    with pytest.raises(SyntaxError):
        ast.parse(source, feature_version=OLDEST)


@pytest.mark.parametrize(
    "source",
    ["from enum import StrEnum", "import tomllib", "zip(a, b, strict=True)", "@dataclass(slots=True)\nclass A: pass"],
)
def test_node_source_check__detects_newer_names(source: str) -> None:
    assert list(newer(ast.parse(source)))


@pytest.mark.parametrize("module", ["perdure.checkpoint", "perdure.agent"])
def test_node_packages__import_on_python_3_9(module: str) -> None:
    python = old_interpreter()
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    code = f"import importlib, pkgutil, {module} as m\n" + (
        "for module in pkgutil.walk_packages(m.__path__, m.__name__ + '.'):\n"
        # Adapters need what they adapt, which is not here.
        "    if not module.name.endswith('__main__') and '.adapters.' not in module.name:\n"
        "        importlib.import_module(module.name)\n"
    )
    done = subprocess.run([python, "-c", code], cwd=ROOT / "checkpoint", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def old_interpreter() -> str | None:
    candidates = [shutil.which("python3.9"), *sorted(map(str, Path.home().glob(".pyenv/versions/3.9.*/bin/python3")))]
    for python in filter(None, candidates):
        # A version manager's shim may exist but not run.
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


def newer(tree: ast.AST) -> list[str]:
    """Names newer than Python 3.9. Annotations may use them, since they are not evaluated."""
    names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=aliases):
                names += [alias.name for alias in aliases if alias.name in NEWER_NAMES or module in NEWER_MODULES]
            case ast.Import(names=aliases):
                names += [alias.name for alias in aliases if alias.name in NEWER_MODULES]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords):
                names += [name for keyword in keywords if (name, keyword.arg) in NEWER_ARGUMENTS]
    return names
