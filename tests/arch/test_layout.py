"""The shape of the tree: namespace, file sizes, names. The rules for import-linter are in pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORT_ROOTS = ("recovery", "checkpoint", "controller")
MAX_LINES = 400
GRAB_BAGS = {"utils", "util", "helpers", "helper", "common", "misc"}


def tracked(*suffixes: str) -> list[Path]:
    """Files of the project: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name.endswith(suffixes) and (ROOT / name).is_file()]


def test_listing__includes_the_source() -> None:
    assert ROOT / "recovery/perdure/recovery/job.py" in tracked(".py")


@pytest.mark.parametrize("import_root", IMPORT_ROOTS)
def test_namespace__has_no_init(import_root: str) -> None:
    folder = ROOT / import_root / "perdure"
    assert folder.is_dir()
    assert not (folder / "__init__.py").exists(), "an __init__.py here hides the other import roots (PEP 420)"


def test_files__are_not_too_long() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked(".py", ".sh")
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long, f"more than {MAX_LINES} lines: {long}"


def test_modules__are_not_grab_bags() -> None:
    assert not [path for path in tracked(".py") if path.stem.strip("_") in GRAB_BAGS]


def test_modules__have_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked(".py")
        if path.stat().st_size > 0
        and "tests" not in path.relative_to(ROOT).parts
        and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not silent
