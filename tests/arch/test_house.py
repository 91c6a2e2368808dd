"""The rules that keep the tree readable: small folders, no import cycle, one class per name, the field's own words."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Each package is one import root: a name stands for one thing within it.
PACKAGES = {
    "recovery": ROOT / "recovery/perdure/recovery",
    "checkpoint": ROOT / "checkpoint/perdure/checkpoint",
    "agent": ROOT / "checkpoint/perdure/agent",
    "sdk": ROOT / "controller/perdure/sdk",
    "cli": ROOT / "controller/perdure/cli",
    "controller": ROOT / "controller/perdure/controller",
}
MAX_ENTRIES = 14
# Words of a private dialect that an identifier may not contain, and the field's word for each.
BANNED_WORDS = {
    "told": "sent, returned, reported",
    "said": "sent, returned, output",
    "heard": "received",
    "hearing": "consumer",
    "whoever": "owner, caller",
    "courtesy": "priority",
    "desk": "inbox",
    "agenda": "event queue",
    "letter": "message",
    "letters": "messages",
    "crowd": "spread",
    "lane": "queue",
    "lanes": "queues",
    "farewell": "final save",
    "beat": "heartbeat",
    "beats": "heartbeats",
    "patience": "idle timeout",
    "seldom": "cache",
    "sparing": "process",
    "rehearsal": "simulation",
    "caretaker": "installer",
    "turnstile": "admission",
    "attendance": "presence",
    "outline": "summary",
    "sighting": "observation",
    "sightings": "observations",
    "helpless": "unsatisfiable",
    "longest": "max",
    "few": "batch size",
    "much": "high water",
    "wish": "request",
    "standing": "usage, requirements",
    "sold": "offered, catalog",
}
# Where a banned word is the right one: SkyPilot's YAML has the field, or the language has the word.
ALLOWED = {"patience"}


def modules(package: Path) -> list[Path]:
    return sorted(path for path in package.rglob("*.py") if "versions" not in path.parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    """The dotted name of a module: `perdure.agent.main`."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_folders__stay_small(package: Path) -> None:
    entries = defaultdict(set)
    for path in modules(package):
        if path.name != "__init__.py":
            entries[path.parent].add(path.name)
        if path.parent != package:
            entries[path.parent.parent].add(path.parent.name)
    large = {str(folder.relative_to(ROOT)): len(names) for folder, names in entries.items() if len(names) > MAX_ENTRIES}
    assert not large, f"more than {MAX_ENTRIES} modules and folders: {large}"


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of ours that a module imports, also inside functions, but not for type checking alone."""
    skipped = {
        child
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_modules__import_each_other_in_one_direction(package: Path) -> None:
    paths = {name_of(path): path for path in modules(package)}
    graph = {
        name: {one for one in imports(path, set(paths)) if one in paths and one != name} for name, path in paths.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_classes__have_one_meaning_per_name(package: Path) -> None:
    homes = defaultdict(list)
    for path in modules(package):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name_of(path))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert not twice, f"one name for several classes: {twice}"


def defined_names(module: ast.Module) -> Iterator[tuple[str, int]]:
    """The identifiers that a module defines: classes, functions, parameters, variables, attributes, fields."""
    for node in ast.walk(module):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def words_of(identifier: str) -> set[str]:
    """`LastHeard_at` → {"last", "heard", "at"}."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_identifiers__use_the_words_of_the_field(package: Path) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name} (write {', '.join(BANNED_WORDS[word] for word in banned)})"
        for path in modules(package)
        for name, line in defined_names(tree(path))
        if name not in ALLOWED and (banned := words_of(name) & BANNED_WORDS.keys())
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_words_of__sees_every_part_of_an_identifier() -> None:
    assert words_of("_LAST_HEARD_S") == {"last", "heard", "s"}
    assert words_of("LastHeardAt2") == {"last", "heard", "at"}
    assert "heard" not in words_of("unheardof")


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_modules__are_nouns(package: Path) -> None:
    """A module is a noun for what it holds; a gerund is rejected."""
    nouns = {
        "keyring",
        "matching",
        "batching",
        "logging",
        "pricing",
        "sampling",
        "staging",
        "hosting",
        "listing",
        "lightning",
        "string",
    }
    gerunds = [
        name_of(path)
        for path in modules(package)
        if path.stem.endswith("ing") and path.stem.rpartition("_")[2] not in nouns
    ]
    assert not gerunds


# Verbs that say nothing of their effect. `read` is right for an object that stands for an open file.
VAGUE_VERBS = {"read", "leave", "look", "settle", "tell", "handle", "process", "do"}
FILE_LIKE = {"perdure.sdk.files.uploads", "perdure.agent.lifecycle.saved_home"}


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_functions__say_their_effect(package: Path) -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in modules(package)
        for scope in (tree(path), *(one for one in ast.walk(tree(path)) if isinstance(one, ast.ClassDef)))
        for node in scope.body  # a function inside a function is its caller's own business
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in VAGUE_VERBS
        if name_of(path) not in FILE_LIKE
    ]
    assert not vague
