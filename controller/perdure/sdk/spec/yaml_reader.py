"""Reads YAML with positions: the value of each document, and the line and column of every key and value in it.

`validators` check the result against `task_fields`.

Stricter than PyYAML: a repeated key, binary data, an unknown tag and an empty text are errors. Dates remain text,
because JSON must be able to represent every value.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.sdk.spec.problems import FieldPath, Problem, TaskError, describe, field_name

if TYPE_CHECKING:  # PyYAML costs more to import than all of the SDK, and many scripts never read YAML
    import yaml

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
MAX_VALUES = 100_000
MAX_DEPTH = 100
_MAX_BYTES = 4 * 2**20
_MAX_DIGITS = 100  # Python parses numbers of any length, in quadratic time
_CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"


@dataclass(frozen=True)
class Position:
    """Both count from 1."""

    line: int
    column: int


@dataclass
class Document:
    """One YAML document. Positions are kept by path: `("resources", "ports", 0)`."""

    value: Any
    file: str | None = None
    keys: dict[FieldPath, Position] = field(default_factory=dict)
    values: dict[FieldPath, Position] = field(default_factory=dict)
    _renamed: dict[FieldPath, str | int] = field(default_factory=dict)  # path → the key that the text has there

    def position(self, path: FieldPath, *, of_key: bool = False) -> Position | None:
        """The position of the value (or its key), or of the innermost value around it if the text lacks it."""
        first, second = (self.keys, self.values) if of_key else (self.values, self.keys)
        if self._renamed:
            path = tuple(self._renamed.get(path[: index + 1], part) for index, part in enumerate(path))
        for length in range(len(path), -1, -1):
            position = first.get(path[:length]) or second.get(path[:length])
            if position:
                return position
        return None

    def rename(self, old: FieldPath, new: FieldPath) -> None:
        """Make every position below `old` available below the path `new`, which differs in its last key.

        The keys before it are those that earlier calls have given.
        """
        self._renamed[new] = old[-1]


def read_file(path: str | os.PathLike[str]) -> list[Document]:
    """The non-empty documents of a file. Raises TaskError if it cannot be read or is not valid YAML."""
    file = os.fspath(path)
    try:
        with open(os.path.expanduser(file), "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        fix = "give the path of a task YAML"
        raise TaskError([Problem("", f"cannot be read: {error.strerror or error}", fix, file=file)]) from error
    if len(data) > _MAX_BYTES:
        raise TaskError([_too_large(file)])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TaskError([_binary(file)]) from None
    return read_text(text, file=file)


def read_text(text: str, *, file: str | None = None) -> list[Document]:
    """The non-empty documents of a text. Raises TaskError. `file` is only used in errors."""
    import yaml

    if len(text) > _MAX_BYTES:
        raise TaskError([_too_large(file)])
    if re.search(_CONTROL, text):
        raise TaskError([_binary(file)])
    documents = []
    problems: list[Problem] = []
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        if _depth(text, loader) > MAX_DEPTH:
            raise TaskError([_too_deep(file)])
        for node in yaml.compose_all(text, Loader=loader):
            reader = _Reader(Document(None, file))
            reader.document.value = reader.value(node, ())
            problems += reader.problems
            if reader.document.value is not None:
                documents.append(reader.document)
    except yaml.MarkedYAMLError as error:
        problems.append(_syntax_problem(error, text, file))
    except yaml.YAMLError as error:
        problems.append(Problem("", f"not YAML: {error}", file=file))
    if problems:
        raise TaskError(problems)
    if not documents:
        raise TaskError([Problem("", "the YAML is empty", "write at least `run: <command>`", file=file)])
    return documents


def _depth(text: str, loader: type[yaml.SafeLoader]) -> int:
    """How deeply the text is nested. Checked first, because PyYAML's composer overruns the C stack on deep texts."""
    import yaml

    depth = deepest = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return deepest


class _Reader:
    """Converts the nodes of one document to plain values and records their positions."""

    def __init__(self, document: Document) -> None:
        import yaml

        self.document = document
        self.problems: list[Problem] = []
        self._construct = yaml.constructor.SafeConstructor()
        self._flattened: set[int] = set()
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        import yaml

        self.document.values[path] = _position(node)
        self._count += 1
        if self._count > MAX_VALUES or id(node) in self._open:
            if self._count <= MAX_VALUES + 1:
                self._problem(node, path, "aliases make this document endless, or far too large", "write it out")
                self._count = MAX_VALUES + 1
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[Any, Any]:
        self._flatten(node, path)
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is not None:
                self.document.keys[(*path, key)] = _position(key_node)
                mapping[key] = self.value(value_node, (*path, key))
        return mapping

    def _flatten(self, node: yaml.MappingNode, path: FieldPath) -> None:
        """Report repeated keys, then resolve `<<`. Once per node: an alias is the same node again."""
        import yaml

        if id(node) in self._flattened:
            return
        self._flattened.add(id(node))
        seen: dict[tuple[str, str], Position] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            first = seen.setdefault((key.tag, key.value), _position(key))
            if first != _position(key):
                message = f"the key is given twice; the first time on line {first.line}"
                self._problem(key, (*path, key.value), message, "keep one of them")
        try:
            self._construct.flatten_mapping(node)
        except yaml.constructor.ConstructorError as error:
            self._problem(node, path, f"`<<` cannot be merged: {error.problem}", "merge mappings only")
            node.value = [(key, value) for key, value in node.value if key.tag != _MERGE]

    def _key(self, node: yaml.Node, path: FieldPath) -> str | int | None:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            self._problem(node, path, "a key is a list or a mapping", "write keys as plain text")
            return None
        key = self._scalar(node, path)
        if isinstance(key, int) and not isinstance(key, bool):
            return key
        return node.value if key is not None or node.tag == _TAG + "null" else None

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind == "timestamp":
            return node.value
        if kind == "binary":
            self._problem(node, path, "binary data cannot be part of a task", "put it in a file, and mount that")
        elif kind not in ("null", "bool", "int", "float", "str", "value"):
            self._problem(node, path, f"unknown YAML tag {node.tag!r}", "write a plain value")
        elif kind in ("int", "float") and len(node.value) > _MAX_DIGITS:
            self._problem(node, path, f"a number of {len(node.value)} digits", "write it in quotes if it is text")
        else:
            try:
                return self._construct.construct_object(node)
            except (ValueError, LookupError, OverflowError):
                self._problem(node, path, f"{describe(node.value)} is not a YAML {kind}", "write it in quotes")
        return None

    def _problem(self, node: yaml.Node, path: FieldPath, message: str, fix: str) -> None:
        at = _position(node)
        self.problems.append(Problem(field_name(path), message, fix, self.document.file, at.line, at.column))


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str | None) -> Problem:
    if "nesting depth" in (error.problem or ""):  # libyaml's own limit, which PyYAML 6.0.4 meets before `_depth` does
        return _too_deep(file)
    message = f"not YAML: {error.problem or error.context}"
    at = error.problem_mark
    lines = text.splitlines() if at and "cannot start any token" in message else []
    if at and at.line < len(lines) and lines[at.line][at.column : at.column + 1] == "\t":  # libyaml does not name it
        message = "not YAML: a tab"
    fix = (
        "indent with spaces, not tabs"
        if "'\\t'" in message or "tab" in message
        else "check indentation, colons and quotes near here"
    )
    problem = Problem("", message, fix, file)
    mark = error.problem_mark or error.context_mark
    start = error.context_mark
    if mark and start and mark.column == 0 and "expected" in message:
        mark = start  # an unclosed bracket or quote is only detected where another line, or the end, follows
    return replace(problem, line=mark.line + 1, column=mark.column + 1) if mark else problem


def _binary(file: str | None) -> Problem:
    return Problem("", "binary data, not YAML text", "give a task YAML in UTF-8", file=file)


def _too_deep(file: str | None) -> Problem:
    return Problem("", "nested too deeply to be a task", file=file)


def _too_large(file: str | None) -> Problem:
    return Problem(
        "", f"larger than {_MAX_BYTES >> 20} MiB", "give a task YAML; put data into files, and mount those", file
    )
