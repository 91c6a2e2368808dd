"""The rule for the tests' own types: a test says what it is given, and a fixture what it gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def untyped(source: str) -> Iterator[str]:
    """The parameters and results, as `line: function: parameter`, that have no type or the type `Any`."""
    tree = ast.parse(source)
    anything = names_of_any(tree)
    for function in ast.walk(tree):
        if not isinstance(function, Function) or not (is_fixture(function) or function.name.startswith("test_")):
            continue
        for parameter in parameters(function):
            if not is_typed(parameter.annotation, anything):
                yield f"{parameter.lineno}: {function.name}: {parameter.arg}"
        if is_fixture(function) and not is_typed(function.returns, anything):
            yield f"{function.lineno}: {function.name}: return"


def names_of_any(tree: ast.Module) -> set[str]:
    """`Any`, and the names that the module gives it: `Site = Any`."""
    names = {"Any", "typing.Any"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in names:
            names.update(ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.ImportFrom) and node.module == "typing":
            names.update(alias.asname for alias in node.names if alias.name == "Any" and alias.asname)
    return names


def is_fixture(function: Function) -> bool:
    """Whether the function is decorated with `@pytest.fixture` or `@pytest.fixture(…)`."""
    decorators = (one.func if isinstance(one, ast.Call) else one for one in function.decorator_list)
    return any(ast.unparse(one) in ("pytest.fixture", "fixture") for one in decorators)


def parameters(function: Function) -> list[ast.arg]:
    of = function.args
    named = [*of.posonlyargs, *of.args, *of.kwonlyargs, *filter(None, (of.vararg, of.kwarg))]
    return [one for one in named if one.arg != "self"]


def is_typed(annotation: ast.expr | None, anything: set[str]) -> bool:
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value not in anything
    return ast.unparse(annotation) not in anything


def test_tests_and_fixtures__are_typed() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{place}"
        for path in sorted(TESTS.rglob("*.py"))
        for place in untyped(path.read_text())
    ]
    assert not wrong, f"{len(wrong)} without a type, or with the type Any:\n" + "\n".join(wrong)


def test_untyped__names_each_missing_type() -> None:
    source = """
Site = Any
@pytest.fixture
def bare(tmp_path): ...
@pytest.fixture(scope="module")
def vague(site: Site, *, home: "Any") -> Any: ...
async def test_case(node: typing.Any) -> None: ...
class TestCase:
    def test_method(self, job) -> None: ...
"""
    assert sorted(untyped(source)) == [
        "4: bare: return",
        "4: bare: tmp_path",
        "6: vague: home",
        "6: vague: return",
        "6: vague: site",
        "7: test_case: node",
        "9: test_method: job",
    ]


def test_untyped__accepts_types_and_leaves_other_functions_alone() -> None:
    source = """
@pytest.fixture
def body(make: Callable[..., Any]) -> dict[str, Any]: ...
def test_case(body: dict[str, Any], node: "Node") -> None: ...
def helper(value, more: Any): ...
"""
    assert list(untyped(source)) == []
