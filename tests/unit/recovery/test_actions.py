"""Timeline entries have known kinds only."""

from __future__ import annotations

import ast
from pathlib import Path

from perdure.controller.nodes.frames import CheckpointState
from perdure.controller.store.records.intents import IntentKind
from perdure.recovery.actions import TIMELINE_KINDS

ROOT = Path(__file__).resolve().parents[3]


def kinds_in_code() -> set[str]:
    """The first argument of every `TimelineEntry(…)`, where it is a literal, or a name for one in its module."""
    kinds = set()
    for path in [*ROOT.glob("recovery/perdure/**/*.py"), *ROOT.glob("controller/perdure/controller/**/*.py")]:
        tree = ast.parse(path.read_text())
        names = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("TimelineEntry") and node.args:
                match node.args[0]:
                    case ast.Constant(value=str(kind)):
                        kinds.add(kind)
                    case ast.Name(id=name):
                        kinds.add(str(names[name]))
    return kinds


def test_timeline_kinds__are_those_of_the_code() -> None:
    made = {f"checkpoint.{state}" for state in CheckpointState} | {f"{kind}.retry" for kind in IntentKind}
    assert kinds_in_code() | made == TIMELINE_KINDS
