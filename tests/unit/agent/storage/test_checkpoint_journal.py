"""The agent's side of checkpoints.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perdure.agent.storage import checkpoint_journal
from perdure.agent.storage.checkpoint_journal import CheckpointJournal, CommittedCheckpoint, LineReader, parse_line
from perdure.checkpoint.durability import journal
from perdure.checkpoint.durability.file_version import UNKNOWN, FileVersion

A, B = FileVersion(7, 1_000, 2_000), FileVersion(8, 3_000, 4_000)
PART = "checkpoint-000000000001-0of2-aabbccdd.safetensors"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(journal, "_total_steps", None)
    return tmp_path / "checkpoints.jsonl"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_read_committed__returns_what_the_library_recorded_once(path: Path) -> None:
    reader = CheckpointJournal(path)
    assert reader.read_committed() == []
    journal.set_total_steps(40)
    journal.record(3, journal.COMMITTED, "/c/.perdure/3.json", directory="/c", files={"3/a.pt": A, "3/b.pt": B})
    journal.record(3, journal.LOADED, "/c/.perdure/3.json")
    files = ("/c/3/a.pt", "/c/3/b.pt")
    assert reader.read_committed() == [CommittedCheckpoint(3, "/c/.perdure/3.json", files, (A, B), 40)]
    assert reader.read_committed() == []


def test_read_committed__waits_for_the_end_of_a_line(path: Path) -> None:
    reader = CheckpointJournal(path)
    line = json.dumps({"step": 1, "state": "committed", "path": "/c/1", "at": 1.0}).encode()
    path.write_bytes(line[:20])
    assert reader.read_committed() == []
    path.write_bytes(line + b"\n")
    assert [checkpoint.step for checkpoint in reader.read_committed()] == [1]


def test_append_durable__has_the_fields_of_the_committed_line(path: Path) -> None:
    journal.set_total_steps(40)
    journal.record(3, journal.COMMITTED, "/c/3", directory="/c", files={"a": A})
    writer = CheckpointJournal(path)
    writer.append_durable(*writer.read_committed())
    committed, durable = lines(path)
    assert {**durable, "at": committed["at"]} == {
        "step": 3, "state": "durable", "path": "/c/3", "total_steps": 40, "at": committed["at"],
    }  # fmt: skip
    assert durable["at"] >= committed["at"]  # type: ignore[operator]


def test_append_durable__is_written_once_also_by_a_restarted_agent(path: Path) -> None:
    journal.record(1, journal.COMMITTED, "/c/1")
    journal.record(2, journal.COMMITTED, "/c/2")
    first = CheckpointJournal(path)
    one, _ = first.read_committed()
    first.append_durable(one)
    first.append_durable(one)
    restarted = CheckpointJournal(path)
    (two,) = restarted.read_committed()
    assert two.step == 2
    restarted.append_durable(one)
    restarted.append_durable(two)
    assert CheckpointJournal(path).read_committed() == []
    assert [(line["step"], line["state"]) for line in lines(path)] == [
        (1, "committed"), (2, "committed"), (1, "durable"), (2, "durable"),
    ]  # fmt: skip


def test_append_durable__is_not_swallowed_by_a_torn_line(path: Path) -> None:
    journal.record(1, journal.COMMITTED, "/c/1")
    with path.open("a") as file:
        file.write('{"step": 2, "state": "comm')
    writer = CheckpointJournal(path)
    writer.append_durable(*writer.read_committed())
    parsed = [parse_line(line) for line in path.read_bytes().splitlines()]
    assert [line and (line["step"], line["state"]) for line in parsed] == [(1, "committed"), None, (1, "durable")]


def test_parse_line__has_what_the_controller_receives() -> None:
    line = {"step": 1, "state": "committed", "path": "/c/1", "at": 1.5, "total_steps": 4}
    assert parse_line(json.dumps({**line, "directory": "/c", "files": ["a"]}).encode()) == line


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b'{"step": 1}', b"\xff\xfe"])
def test_parse_line__skips_what_a_torn_write_left(line: bytes) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"step": "1"}, {"step": None}, {"path": 7}, {"path": ["/c"]}, {"path": "/c\0"}, {"files": 7}, {"files": [7]},
        {"files": {"a": 1}}, {"files": ["a"], "directory": 7},
    ],
)  # fmt: skip
def test_read_committed__skips_malformed_lines(path: Path, fields: dict[str, object]) -> None:
    line = {"step": 1, "state": "committed", "path": "/c/1", "at": 1.0}
    path.write_text("".join(json.dumps(one) + "\n" for one in ({**line, **fields}, {**line, "path": "/c/2"})))
    assert [checkpoint.path for checkpoint in CheckpointJournal(path).read_committed()] == ["/c/2"]


def test_read_committed__knows_no_content_from_an_older_library(path: Path) -> None:
    line = {"step": 1, "state": "committed", "path": "/c/1", "at": 1.0, "directory": "/c", "files": ["model.pt", PART]}
    invalid = [None, 7, ["a"], [[1, 2, 3]], [[1, 2], None], [[1, 2, True], None], [[1, 2, "3"], None]]
    path.write_text(
        "".join(json.dumps({**line, "path": f"/c/{n}", "versions": v}) + "\n" for n, v in enumerate(invalid))
    )
    read = CheckpointJournal(path).read_committed()
    assert [checkpoint.versions for checkpoint in read] == [(UNKNOWN, None)] * len(invalid), "a part's name is unique"


def test_read_committed__takes_no_reused_name_for_a_unique_one(path: Path) -> None:
    journal.record(1, journal.COMMITTED, "/c/1", directory="/c", files={"model.pt": None})
    assert [checkpoint.versions for checkpoint in CheckpointJournal(path).read_committed()] == [(UNKNOWN,)]


def test_read_committed__returns_every_other_line_beside_a_hostile_one(path: Path) -> None:
    good = json.dumps({"step": 1, "state": "committed", "path": "/c/1", "at": 1.0}).encode()
    for number, hostile in enumerate(HOSTILE):
        path.write_bytes(hostile + b"\n" + good + b"\n")
        assert [checkpoint.path for checkpoint in CheckpointJournal(path).read_committed()] == ["/c/1"], number


def test_read_committed__ends_while_the_file_keeps_growing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"step": 1, "state": "committed", "path": "/c/1", "at": 1.0}) + "\n"
    path.write_text(line)
    read_from, reads = checkpoint_journal.read_from, iter(range(5))

    def growing(journal_path: Path, offset: int) -> bytes:
        next(reads)
        data = read_from(journal_path, offset)
        with path.open("a") as file:
            file.write(line)
        return data

    monkeypatch.setattr(checkpoint_journal, "read_from", growing)
    assert len(CheckpointJournal(path).read_committed()) == 1


FIELDS = b'"step": 1, "state": "committed", "at": 1.0'
HOSTILE = [
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"9" * 5_000,
    b'{"path": "/c/\\ud800", ' + FIELDS + b"}",
    b'{"path": "/c/0", "directory": "/c", "files": ["\\ud800"], ' + FIELDS + b"}",
    b'{"path": "/c/0", "directory": "\\ud800", "files": ["a"], ' + FIELDS + b"}",
    b'{"path": "/' + b"c" * 5_000 + b'", ' + FIELDS + b"}",
]


@pytest.mark.parametrize(
    "fields",
    [
        {"step": True}, {"step": -1}, {"step": 1 << 63}, {"step": 1.0}, {"state": "finished"}, {"state": ["durable"]},
        {"at": "1"}, {"at": True}, {"at": float("nan")}, {"at": float("inf")}, {"at": -1.0}, {"at": 1e300},
        {"total_steps": "9"}, {"total_steps": -1}, {"total_steps": True}, {"total_steps": None},
        {"path": ""}, {"path": "/c\0"}, {"path": "/" + "c" * 4_096}, {"path": "/c/\ud800"},
    ],
)  # fmt: skip
def test_parse_line__rejects_invalid_values(fields: dict[str, object]) -> None:
    line = {"step": 1, "state": "committed", "path": "/c/1", "at": 1.0}
    assert parse_line(json.dumps(line).encode()) == line
    assert parse_line(json.dumps({**line, **fields}).encode()) is None


def test_parse_line__is_text_also_for_a_path_of_other_bytes() -> None:
    path = os.fsdecode(b"/c/\xff")
    parsed = parse_line(json.dumps({"step": 1, "state": "committed", "path": path, "at": 1.0}).encode())
    assert parsed is not None
    assert parsed["path"] == "/c/?"


@pytest.fixture
def small_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_journal, "READ_BYTES", 16)
    monkeypatch.setattr(checkpoint_journal, "MAX_LINE_BYTES", 40)


def all_lines(path: Path) -> tuple[list[bytes], int]:
    reader, found = LineReader(path), []
    while (new := reader.next_lines()) is not None:
        found += new
    return found, reader.consumed_bytes


@pytest.mark.usefixtures("small_lines")
@pytest.mark.parametrize("length", [1, 15, 16, 17, 39, 40])
def test_line_reader__returns_lines_of_any_length_up_to_the_limit(path: Path, length: int) -> None:
    path.write_bytes(b"a\n" + b"x" * length + b"\n\nb\nrest")
    assert all_lines(path) == ([b"a", b"x" * length, b"", b"b"], path.stat().st_size - len("rest"))


@pytest.mark.usefixtures("small_lines")
@pytest.mark.parametrize("length", [41, 47, 48, 49, 64, 500])
def test_line_reader__skips_a_line_over_the_limit(path: Path, length: int) -> None:
    path.write_bytes(b"a\n" + b"x" * length + b"\nb\n")
    assert all_lines(path) == ([b"a", b"b"], path.stat().st_size)


def test_line_reader__does_not_wait_for_a_pipe(path: Path) -> None:
    os.mkfifo(path)
    assert LineReader(path).next_lines() is None
