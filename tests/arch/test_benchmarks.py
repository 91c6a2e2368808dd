"""Every benchmark prints how fast the machine is: its figures mean nothing without that."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# Processes that a benchmark starts; they print no figures.
PARTS = {"scale/simulated_cloud.py", "scale/user.py"}
SCRIPTS = sorted(
    name
    for path in BENCHMARKS.rglob("*.py")
    if '__name__ == "__main__"' in path.read_text() and (name := str(path.relative_to(BENCHMARKS))) not in PARTS
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_benchmark__prints_the_speed_of_its_machine(name: str) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse((BENCHMARKS / name).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "print_machine" in called


def test_benchmarks__are_found() -> None:
    assert {"latency.py", "policies.py", "checkpoints.py", "scale/__main__.py"} <= set(SCRIPTS)
