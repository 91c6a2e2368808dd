"""The YAML reader with hostile input: a task or a readable TaskError, quickly and in little memory."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.sdk import Dag, Task
from perdure.sdk.spec.file_mount_fields import STORAGE
from perdure.sdk.spec.problems import TaskError
from perdure.sdk.spec.resource_fields import RESOURCE_FIELDS
from perdure.sdk.spec.task_fields import TASK_FIELDS
from support.helpers.timing import scaled

SEEDS = sorted((Path(__file__).parents[3] / "fuzz" / "corpus").iterdir())
MAX_S, MAX_MIB = 20.0, 700
DIGITS = "9" * 5000


def readable(error: TaskError, file: str | None) -> TaskError:
    """Check that the error can be printed and has a place and a message."""
    assert str(error).encode()
    assert error.problems
    for problem in error.problems:
        assert problem.message
        assert problem.file == file
        assert len(str(problem)) < 20_000
    return error


def outcome(path: Path) -> list[Task] | TaskError:
    """The tasks of the file, which must round-trip, or its error, which must be readable."""
    try:
        tasks = Dag.from_yaml(path).tasks
    except TaskError as error:
        return readable(error, str(path))
    for task in tasks:
        config = json.loads(json.dumps(task.to_yaml_config(), allow_nan=False))
        assert Task.from_yaml_config(config) == task
        dumped = yaml.safe_dump(task.to_yaml_config(), allow_unicode=True)
        assert Task.from_yaml_str(dumped if dumped != "{}\n" else "name:\n---\nrun: ''\n") == task or not config
    return tasks


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yaml") / "task.yaml"


# ---- valid tasks, damaged in one or several places ----

GOOD = [seed.read_bytes() for seed in SEEDS if seed.suffix == ".yaml"]
# fmt: off
PIECES = st.sampled_from(
    [b"&a ", b"*a", b"<<: *a\n", b"!!int ", b"!!binary ", b"!!python/object:os.system ", b"- ", b"? ", b": ",
     b"|\n", b">-\n", b"{", b"}", b"[", b"]", b'"', b"'", b"#", b"%YAML 1.2\n", b"---\n", b"...\n", b"\t", b"\0",
     b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"~", b"null", b".inf", b".nan", b"-0", b"1e999",
     b"0x" + b"f" * 40, b"1:2:3", b"2026-01-01", b"yes", b"${A}", b"$A", b"\\ud800", b'"\\ud800"', b'"\\0"',
     DIGITS.encode(), b"0o17", b"a" * 300]
)
# fmt: on


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["insert", "delete", "repeat", "swap", "byte"])):
            case "insert":
                data = data[:at] + draw(PIECES) + data[at:]
            case "delete":
                data = data[:at] + data[at + draw(st.integers(1, 20)) :]
            case "repeat":
                end = at + draw(st.integers(1, 40))
                data = data[:end] + data[at:]
            case "swap":
                other = draw(st.sampled_from(GOOD))
                data = data[:at] + other[draw(st.integers(0, len(other))) :]
            case _:
                data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data


@given(broken())
def test_yaml_reader__survives_damaged_tasks(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    outcome(file)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_yaml_reader__survives_any_bytes(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    outcome(file)


KEYS = st.sampled_from(sorted({*TASK_FIELDS, *RESOURCE_FIELDS, *STORAGE.fields})) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**4000, 10**4001) | st.floats()
    | st.text(alphabet=st.characters(exclude_categories=()))
    | st.sampled_from(["${A}", "$A", "4+", "s3://b/p", "A100:8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_task__survives_any_value_in_any_field(config: dict[str, Any]) -> None:
    try:
        task = Task.from_yaml_config(config)
    except TaskError as error:
        readable(error, None)
        return
    assert Task.from_yaml_config(json.loads(json.dumps(task.to_yaml_config(), allow_nan=False))) == task


# ---- bombs: short texts that expand ----


def laughs(depth: int, merge: bool) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for n in range(1, depth):
        lines.append(f"a{n}: &a{n} " + (f"{{<<: [*a{n - 1}, *a{n - 1}]}}" if merge else f"[*a{n - 1}, *a{n - 1}]"))
    return "\n".join(lines)


BOMBS = {
    "aliases": laughs(60, merge=False),
    "merges": laughs(60, merge=True),
    "wide merges": "a: &a {" + ", ".join(f"k{n}: 1" for n in range(300)) + "}\n"
    + "\n".join(f"b{n}: {{<<: [" + ", ".join(["*a"] * 100) + "]}" for n in range(30)),
    "itself": "run: &a [*a]",
    "itself in a mapping": "config: &a {x: *a}",
    "merged with itself": "config: &a {<<: *a}",
    "deep lists": "run: " + "[" * 200_000,
    "deep mappings": "run: " + "{a: " * 50_000,
    "deep by indentation": "\n".join(" " * n + "a:" for n in range(2_000)),
    "deep keys": "? " * 20_000,
    "a huge decimal": f"num_nodes: {DIGITS}",
    "a huge hexadecimal": "num_nodes: 0x" + "f" * 100_000,
    "a huge octal": "priority: 0" + "7" * 100_000,
    "a huge binary": "inputs: {a: 0b" + "1" * 200_000 + "}",
    "a huge base 60": "num_nodes: 1" + ":1" * 50_000,
    "a huge base 60 float": "num_nodes: 1" + ":1" * 50_000 + ".5",
    "a huge number in an env": "envs: {A: 0x" + "f" * 100_000 + "}",
    "a huge number as a key": "envs: {0x" + "f" * 100_000 + ": 1}",
    "a huge number of accelerators": "resources: {accelerators: {A100: 0x" + "f" * 10_000 + "}}",
    "a huge size": "resources: {memory: 1e308, disk_size: 9e307PB, cpus: 1e308+}",
    "a huge port": "resources: {ports: " + DIGITS + "}",
    "a huge float": "inputs: {a: 1" + "0" * 100_000 + ".0}",
    "many documents": "---\nrun: a\n" * 20_000,
    "many keys": "\n".join(f"k{n}: 1" for n in range(200_000)),
    "many problems": "resources:\n" + "\n".join(f"  k{n}: 1" for n in range(20_000)),
    "many envs": "envs:\n" + "\n".join(f"  K{n}: ${{K{n - 1}}}" for n in range(20_000)),
    "envs that grow": "workdir: ${A}\nenvs: {A: '${B}${B}', B: '${C}${C}', C: '${D}${D}', D: '${A}${A}'}",
    "a long name": "name: " + "a." * 500_000,
    "a long infra": "resources: {infra: " + "a/" * 200_000 + "}",
    "a long accelerator": "resources: {accelerators: " + "a" * 300_000 + "}",
    "many accelerators": "resources: {accelerators: '" + "A100 " * 100_000 + "'}",
    "a long amount": "resources: {cpus: '" + "1" * 100_000 + "x'}",
    "a long duration": "resources: {autostop: '" + " " * 100_000 + "x'}",
    "a long variable": "workdir: " + "${" * 100_000,
    "a long bucket": "file_mounts: {/x: 's3://" + "a-" * 200_000 + "'}",
    "a long unknown field": "a" * 1_000_000 + ": 1",
    "more than is read": "#" * 5_000_000,
}  # fmt: skip


SLOW_BOMBS = {"many keys"}  # "many problems" and "many documents" are as many nodes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW_BOMBS else name for name in BOMBS]
)
def test_yaml_reader__limits_time_and_memory(tmp_path: Path, name: str) -> None:
    """In a process with limited memory. The error must be short enough to read."""
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    script = (
        "import sys\nfrom perdure.sdk import Dag\nfrom perdure.sdk.spec.problems import TaskError\n"
        "try:\n    Dag.from_yaml(sys.argv[1]); print('read')\n"
        "except TaskError as error:\n    print(f'refused: {error}')\n"
    )

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MIB << 20, MAX_MIB << 20))

    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=limited,
        timeout=scaled(120),
        check=False,
    )
    spent_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.match("read|refused: ", done.stdout)
    assert spent_s < MAX_S
    assert len(done.stdout) < 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('run: "a\\0b"', "run: found"),
        ('envs: {A: "\\ud800"}', "task.yaml:1"),
        ('"\\udfff": 1', "task.yaml:1"),
        ("num_nodes: 10001", "from 1 to 10000"),
    ],
)
def test_task__rejects_values_that_no_shell_can_hold(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(text + "\n")
    error = outcome(path)
    assert isinstance(error, TaskError)
    assert message in str(error)


def test_yaml_reader__stops_at_the_size_limit() -> None:
    began = time.monotonic()
    with pytest.raises(TaskError, match="larger than"):
        Task.from_yaml("/dev/zero")
    assert time.monotonic() - began < MAX_S


def test_yaml_reader__reads_a_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"run: echo from a pipe\n")
    os.close(writer)
    assert Task.from_yaml(f"/proc/self/fd/{reader}").run == "echo from a pipe"
    os.close(reader)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_yaml_reader__survives_the_fuzz_corpus(seed: Path) -> None:
    outcome(seed)
