"""The YAML reader against what nobody should write: a task, or a `TaskError` that names the file; soon, and small."""

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
from perdure.sdk.problems import TaskError
from perdure.sdk.schema import RESOURCE_FIELDS, STORAGE_FIELDS, TASK_FIELDS

SEEDS = sorted((Path(__file__).parents[2] / "fuzz" / "corpus").iterdir())
MOST_S, MOST_MIB = 20.0, 700
DIGITS = "9" * 5000


def readable(refused: TaskError, file: str | None) -> TaskError:
    """The refusal, which can be printed, and says where and what."""
    assert str(refused).encode()
    assert refused.problems
    for problem in refused.problems:
        assert problem.message
        assert problem.file == file
        assert len(str(problem)) < 20_000
    return refused


def outcome(path: Path) -> list[Task] | TaskError:
    """What the file comes to. Whatever is refused is refused as people can read it; what is read stays what it is."""
    try:
        tasks = Dag.from_yaml(path).tasks
    except TaskError as refused:
        return readable(refused, str(path))
    for task in tasks:
        config = json.loads(json.dumps(task.to_yaml_config(), allow_nan=False))
        assert Task.from_yaml_config(config) == task
        dumped = yaml.safe_dump(task.to_yaml_config(), allow_unicode=True)
        assert Task.from_yaml_str(dumped if dumped != "{}\n" else "name:\n---\nrun: ''\n") == task or not config
    return tasks


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yaml") / "task.yaml"


# ---- near misses: good tasks, broken in one place or several ----

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
def broken(draw: Any) -> bytes:
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
def test_a_good_task_that_was_damaged(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    outcome(file)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    outcome(file)


KEYS = st.sampled_from(sorted({*TASK_FIELDS, *RESOURCE_FIELDS, *STORAGE_FIELDS})) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**4000, 10**4001) | st.floats()
    | st.text(alphabet=st.characters(exclude_categories=()))
    | st.sampled_from(["${A}", "$A", "4+", "s3://b/p", "A100:8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_fields_of_every_kind_in_every_place(config: dict[str, Any]) -> None:
    try:
        task = Task.from_yaml_config(config)
    except TaskError as refused:
        readable(refused, None)
        return
    assert Task.from_yaml_config(json.loads(json.dumps(task.to_yaml_config(), allow_nan=False))) == task


# ---- bombs: what is short to write and long to read ----


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


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_told_soon_and_in_little_memory(tmp_path: Path, name: str) -> None:
    """In a process of its own, which is not given more memory; the error is short enough to be read."""
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    script = (
        "import sys\nfrom perdure.sdk import Dag\nfrom perdure.sdk.problems import TaskError\n"
        "try:\n    Dag.from_yaml(sys.argv[1]); print('read')\n"
        "except TaskError as refused:\n    print(f'refused: {refused}')\n"
    )

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MIB << 20, MOST_MIB << 20))

    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=limited,
        timeout=120,
        check=False,
    )
    spent_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.match("read|refused: ", done.stdout)
    assert spent_s < MOST_S
    assert len(done.stdout) < 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('run: "a\\0b"', "run: found"),
        ('envs: {A: "\\ud800"}', "task.yaml:1"),
        ('"\\udfff": 1', "task.yaml:1"),
        ("num_nodes: 10001", "from 1 to 10000"),
    ],
)
def test_what_no_shell_could_hold_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(text + "\n")
    refused = outcome(path)
    assert isinstance(refused, TaskError)
    assert said in str(refused)


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    began = time.monotonic()
    with pytest.raises(TaskError, match="larger than"):
        Task.from_yaml("/dev/zero")
    assert time.monotonic() - began < MOST_S


def test_a_pipe_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"run: echo from a pipe\n")
    os.close(writer)
    assert Task.from_yaml(f"/proc/self/fd/{reader}").run == "echo from a pipe"
    os.close(reader)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_seeds_and_what_was_found_before(seed: Path) -> None:
    outcome(seed)
