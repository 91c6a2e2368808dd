"""Logs and files: the same promises whether they are one daemon's own or in the database of several."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller import rowreader
from perdure.controller.clock import ManualClock
from perdure.controller.files import Files, FolderFiles, SharedFiles
from perdure.controller.keyring import KEY_FILE, TOKEN_FILE, WrongKeyring, keyring_of
from perdure.controller.nodelogs import Logs, NodeLogs
from perdure.controller.sharedlogs import SharedLogs
from perdure.controller.store.database import open_database

KEY = (1, 0, 1)


def new_database(request: pytest.FixtureRequest, folder: Path) -> Engine:
    if request.param == "sqlite":
        return open_database(f"sqlite:///{folder / 'shared.db'}")
    return open_database(request.getfixturevalue("postgres").new_database())


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def make_logs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Logs]:
    """Makes what a daemon has; two of the rows' kind are as two daemons on one database."""
    if request.param == "files":
        return lambda: NodeLogs(tmp_path)
    engine = new_database(request, tmp_path)
    return lambda: SharedLogs(engine)


def everything(logs: Logs, rank: int = 0) -> bytes:
    return b"".join(logs.read(KEY, chunk) for chunk in logs.reader(KEY).new() if chunk.rank == rank)


def test_whatever_is_sent_again_the_log_is_the_nodes(make_logs: Callable[[], Logs]) -> None:
    logs, chance = make_logs(), random.Random(4)
    whole = chance.randbytes(3000)
    assert logs.size(KEY, 0) == 0
    for _ in range(60):
        start = chance.randrange(len(whole))
        logs.append(KEY, 0, start, whole[start : start + chance.randrange(1, 300)])
    kept = logs.size(KEY, 0)
    assert make_logs().append(KEY, 0, kept, whole[kept:]) == len(whole)
    assert everything(logs) == whole


def test_bytes_beyond_a_gap_are_asked_for_again(make_logs: Callable[[], Logs]) -> None:
    logs = make_logs()
    assert logs.append(KEY, 0, 0, b"abc") == 3
    assert logs.append(KEY, 0, 10, b"later") == 3
    assert logs.append(KEY, 1, 0, b"other") == 5
    assert logs.append((1, 0, 2), 0, 0, b"x") == 1


def test_a_reader_goes_on_where_it_stopped(make_logs: Callable[[], Logs]) -> None:
    logs = make_logs()
    reader = logs.reader(KEY)
    assert reader.new() == []
    for piece in (b"a", b"bc"):
        logs.append(KEY, 0, logs.size(KEY, 0), piece)
    logs.append(KEY, 1, 0, b"xyz")
    assert b"".join(logs.read(KEY, chunk) for chunk in reader.new()) == b"abcxyz"
    logs.append(KEY, 0, 3, b"d")
    assert [logs.read(KEY, chunk) for chunk in reader.new()] == [b"d"]
    assert reader.new() == []


def test_two_daemons_that_serve_one_node_at_once_double_nothing(database: Engine) -> None:
    whole = b"".join(b"line %d\n" % i for i in range(400))

    def send(logs: SharedLogs) -> None:
        at = 0
        while at < len(whole):
            at = logs.append(KEY, 0, at, whole[at : at + 100])

    writers = [SharedLogs(database), SharedLogs(database)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(send, writers))
    assert everything(SharedLogs(database)) == whole


def test_a_large_piece_is_split(database: Engine) -> None:
    data = random.Random(1).randbytes(2 * rowreader.CHUNK_BYTES + 17)
    logs = SharedLogs(database)
    assert logs.append(KEY, 0, 0, data) == len(data)
    assert [chunk.length for chunk in logs.reader(KEY).new()] == [2**20, 2**20, 17]
    assert everything(logs) == data


@pytest.fixture(params=["folder", "sqlite", "postgresql"])
def make_files(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Files]:
    """Makes what a daemon has; those in rows each have a folder of their own on a computer of their own."""
    if request.param == "folder":
        return lambda _name: FolderFiles(tmp_path)
    engine = new_database(request, tmp_path)

    def make(name: str) -> Files:
        (tmp_path / name).mkdir()
        return SharedFiles(FolderFiles(tmp_path / name), engine, ManualClock())

    return make


def test_a_file_that_one_daemon_keeps_all_can_serve(make_files: Callable[[str], Files], tmp_path: Path) -> None:
    one, two = make_files("one"), make_files("two")
    data = random.Random(2).randbytes(2**20 + 5)
    digest = hashlib.sha256(data).hexdigest()
    assert not one.has(digest)
    assert two.path(digest) is None
    written = tmp_path / "written"
    for files in (one, two, one):
        written.write_bytes(data)
        files.keep(digest, written)
    assert not written.exists()
    assert two.has(digest)
    found = two.path(digest)
    assert found is not None
    assert found.read_bytes() == data
    for name in ("one", "two", ""):
        (tmp_path / name / digest).unlink(missing_ok=True)
    if not isinstance(two, FolderFiles):
        again = two.path(digest)
        assert again is not None
        assert again.read_bytes() == data, "what a computer has lost comes from the database"


def keyring_in(folder: Path, database: Engine, *, others_live: bool = True, is_alone: bool = False) -> dict[str, str]:
    with database.begin() as conn:
        return keyring_of(folder, conn, is_alone=is_alone, others_live=others_live and not is_alone).fingerprints()


def test_every_daemon_has_the_same_keyring(database: Engine, tmp_path: Path) -> None:
    first = keyring_in(tmp_path / "one", database)
    assert keyring_in(tmp_path / "one", database) == first
    with pytest.raises(WrongKeyring, match="has a keyring already"):
        keyring_in(tmp_path / "two", database)
    assert not (tmp_path / "two").exists(), "one that can not be right is not made"
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (KEY_FILE, TOKEN_FILE):
        (copy / name).write_bytes((tmp_path / "one" / name).read_bytes())
    assert keyring_in(copy, database) == first
    (copy / TOKEN_FILE).write_text("another\n")
    with pytest.raises(WrongKeyring, match="fingerprint"):
        keyring_in(copy, database)
    assert keyring_in(copy, database, others_live=False) != first, "alone, it may have a new token"
    (copy / KEY_FILE).write_text("00" * 32)
    with pytest.raises(WrongKeyring, match=r"secret\.key"):
        keyring_in(copy, database, others_live=False)


def test_one_alone_may_lose_its_token_and_never_its_key(tmp_path: Path, database: Engine) -> None:
    """A new key would be worth nothing: stored secrets stay sealed, and running nodes would be strangers."""
    first = keyring_in(tmp_path, database, is_alone=True)
    (tmp_path / TOKEN_FILE).unlink()
    again = keyring_in(tmp_path, database, is_alone=True)
    assert again[KEY_FILE] == first[KEY_FILE]
    assert again[TOKEN_FILE] != first[TOKEN_FILE]
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(WrongKeyring, match="has a keyring already"):
        keyring_in(tmp_path, database, is_alone=True)
    assert not (tmp_path / KEY_FILE).exists()


def test_what_comes_together_is_kept_as_if_it_had_come_one_by_one(make_logs: Callable[[], Logs]) -> None:
    logs, others = make_logs(), (2, 0, 1)
    first = [(KEY, 0, 0, b"ab"), (others, 0, 0, b"x"), (KEY, 1, 0, b"12"), (KEY, 0, 2, b"cd")]
    assert logs.append_all(first) == [2, 1, 2, 4]
    assert logs.append(KEY, 0, 4, b"ef") == 6
    assert logs.append_all([(KEY, 0, 3, b"defg"), (KEY, 0, 9, b"beyond a gap"), (KEY, 0, 7, b"h")]) == [7, 7, 8]
    assert everything(logs) == b"abcdefgh"
    assert logs.sizes([(KEY, 1), (KEY, 0), (others, 0), ((3, 0, 1), 0)]) == [2, 8, 1, 0]


def test_what_a_node_sends_piece_by_piece_is_one_row_where_it_came_together(database: Engine) -> None:
    logs = SharedLogs(database)
    logs.append_all([(KEY, 0, 0, b"a"), (KEY, 0, 1, b"b"), (KEY, 1, 0, b"c"), (KEY, 0, 2, b"d")])
    reader = logs.reader(KEY)
    assert [logs.read(KEY, chunk) for chunk in reader.new()] == [b"ab", b"c", b"d"]
    assert reader.next_number == 3


def test_what_another_daemon_wrote_meanwhile_is_seen(database: Engine) -> None:
    one, two = SharedLogs(database), SharedLogs(database)
    assert one.append_all([(KEY, 0, 0, b"ab")]) == [2]
    assert two.append_all([(KEY, 0, 0, b"abcd")]) == [4]
    assert one.append_all([(KEY, 0, 2, b"cdef")]) == [6]
    assert two.append_all([(KEY, 1, 0, b"x"), (KEY, 0, 4, b"efg")]) == [1, 7]
    assert everything(one) == b"abcdefg"
