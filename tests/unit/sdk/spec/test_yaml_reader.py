"""Values and positions of YAML documents, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.sdk.spec.problems import TaskError
from perdure.sdk.spec.yaml_reader import Position, read_file, read_text


def error_of(text: str) -> str:
    with pytest.raises(TaskError) as error:
        read_text(text, file="t.yaml")
    return str(error.value)


def test_positions__of_keys_and_values() -> None:
    (document,) = read_text("resources:\n  ports: [80,\n    90]\nrun: |\n  x\n")
    assert document.value == {"resources": {"ports": [80, 90]}, "run": "x\n"}
    assert document.keys[("resources",)] == Position(1, 1)
    assert document.keys[("resources", "ports")] == Position(2, 3)
    assert document.values[("resources", "ports")] == Position(2, 10)
    assert document.values[("resources", "ports", 1)] == Position(3, 5)
    assert document.keys[("run",)] == Position(4, 1)


def test_positions__fall_back_to_the_enclosing_value() -> None:
    (document,) = read_text("a:\n  b: {}\n")
    assert document.position(("a", "b", "c", 0)) == Position(2, 6)
    assert document.position(("a", "b"), of_key=True) == Position(2, 3)
    assert document.position(("z",)) == Position(1, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", 1),
        ("a: 1.5", 1.5),
        ("a: yes", True),
        ("a:", None),
        ("a: ~", None),
        ("a: 0x10", 16),
        ("a: '1'", "1"),
        ("a: 4+", "4+"),
        ("a: A100:8", "A100:8"),
        ("a: 2024-01-01", "2024-01-01"),
        ("a: 2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("a: {A100:1, H100:1}", {"A100:1": None, "H100:1": None}),
        ("a: !!set {A100, H100}", {"A100": None, "H100": None}),
        ("a:\n  ? A100\n  ? H100\n", {"A100": None, "H100": None}),
        ("b: &b {x: 1, y: 2}\na:\n  <<: *b\n  y: 3\n", {"x": 1, "y": 3}),
        ("b: &b {x: 1}\nc: &c {<<: *b, y: 2}\nd: *c\na: *c\n", {"x": 1, "y": 2}),
        ("a: {1: x, yes: y}", {1: "x", "yes": "y"}),
    ],
)
def test_yaml_reader__reads_values(text: str, value: object) -> None:
    (document,) = read_text(text)
    assert document.value["a"] == value


def test_yaml_reader__skips_empty_documents() -> None:
    documents = read_text("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n---\n")
    assert [document.value for document in documents] == [{"a": 1}, {"b": 2}]
    assert documents[1].keys[("b",)] == Position(7, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "t.yaml: the YAML is empty; write at least `run: <command>`"),
        ("# only\n---\n", "t.yaml: the YAML is empty; write at least `run: <command>`"),
        ("a\x00b", "t.yaml: binary data, not YAML text; give a task YAML in UTF-8"),
        (
            "run: a\nname: x\nrun: b\n",
            "t.yaml:3: run: the key is given twice; the first time on line 1; keep one of them",
        ),
        (
            "resources:\n  cpus: 1\n  cpus: 2\n",
            "t.yaml:3: resources.cpus: the key is given twice; the first time on line 2; keep one of them",
        ),
        (
            "a: !!binary aGk=",
            "t.yaml:1: a: binary data cannot be part of a task; put it in a file, and mount that",
        ),
        ("a: !python/name:os.system x", "t.yaml:1: a: unknown YAML tag '!python/name:os.system'; write a plain value"),
        ("a: !!int twelve", "t.yaml:1: a: 'twelve' is not a YAML int; write it in quotes"),
        (
            "a: 1\n\tb: 2\n",
            "t.yaml:2: not YAML: found a tab character that violates indentation; indent with spaces, not tabs",
        ),
        ("resources:\n\tcpus: 1\n", "t.yaml:2: not YAML: a tab; indent with spaces, not tabs"),
        (
            "a: [1,\nb: 2\n",
            "t.yaml:1: not YAML: did not find expected ',' or ']'; check indentation, colons and quotes near here",
        ),
        (
            "a: 1\nrun echo\n",
            "t.yaml:2: not YAML: could not find expected ':'; check indentation, colons and quotes near here",
        ),
        ("? [a, b]\n: 1\n", "t.yaml:1: a key is a list or a mapping; write keys as plain text"),
        (
            "a:\n  <<: 5\n",
            "t.yaml:2: a: `<<` cannot be merged: expected a mapping or list of mappings for merging, but found scalar"
            "; merge mappings only",
        ),
        ("a: &a [*a]\n", "t.yaml:1: a[0]: aliases make this document endless, or far too large; write it out"),
        ("a: " + "[" * 200_000 + "]" * 200_000, "t.yaml: nested too deeply to be a task"),
    ],
)
def test_yaml_reader__reports_place_and_fix(text: str, expected: str) -> None:
    assert error_of(text) == expected


def test_yaml_reader__rejects_multiplying_aliases() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "far too large" in error_of("\n".join(lines))


def test_yaml_reader__reports_all_repeated_keys() -> None:
    assert error_of("a: 1\na: 2\nb: 1\nb: 2\n").splitlines()[0] == "t.yaml has 2 problems:"


def test_read_file__reports_unreadable_files(tmp_path: Path) -> None:
    good = tmp_path / "t.yaml"
    good.write_bytes(b"\xef\xbb\xbfrun: hi\n")
    assert read_file(good)[0].value == {"run": "hi"}
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00run")
    for name, message in [
        ("missing.yaml", "cannot be read: No such file or directory; give the path of a task YAML"),
        (".", "cannot be read: Is a directory; give the path of a task YAML"),
        ("binary", "binary data, not YAML text; give a task YAML in UTF-8"),
    ]:
        with pytest.raises(TaskError) as error:
            read_file(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: {message}"
