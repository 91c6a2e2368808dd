"""Patterns of job names: what they match, in every language that they are said in, and what can not be read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, insert, text

from perdure.controller.api.app import create_app
from perdure.controller.clock import ManualClock
from perdure.controller.daemon import Daemon
from perdure.controller.settings import Settings
from perdure.controller.store import globs, search
from perdure.controller.store.database import open_database
from perdure.controller.store.globs import BadGlob
from perdure.controller.store.jobs import Job
from perdure.controller.store.search import Filter

FEW_CHARACTERS = "aB_.-7"
NAMES = st.text(FEW_CHARACTERS, max_size=6)
PATTERNS = st.lists(
    st.sampled_from([*FEW_CHARACTERS, "*", "**", "?", "[aB]", "[!a7]", "[a-z]", "[!0-9]", "[-_]", "[.]", "[!A-Z_-]"]),
    max_size=6,
).map("".join)


@given(PATTERNS, NAMES)
def test_a_pattern_matches_what_a_shells_would(pattern: str, name: str) -> None:
    glob, should = globs.read(pattern), fnmatchcase(name, pattern)
    assert bool(re.fullmatch(glob.regex, name)) == should
    with sqlite3.connect(":memory:") as conn:
        assert conn.execute("SELECT ? GLOB ?", (name, glob.sqlite)).fetchone() == (should,)
    if should:
        assert name.startswith(glob.prefix)
        assert not glob.prefix or glob.prefix <= name < glob.after_prefix


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("train-[12", "no ] follows"),
        ("[]", "nothing between"),
        ("*[z-a]", "z-a is no range"),
        ("[!A-Za-z0-9_.-]", "no character is left"),
        ("my train*", "no job's name has ' '"),
        ("{a,b}*", "no job's name has '{'"),
        ("*%", "no job's name has '%'"),
        ("a*\x00", r"no job's name has '\\x00'"),
        ("é*", "no job's name has 'é'"),
        ("*" + "a" * 200, "201 characters is too long"),
    ],
)
def test_what_can_not_be_a_pattern_is_refused(pattern: str, said: str) -> None:
    assert globs.is_glob(pattern)
    with pytest.raises(BadGlob, match=said) as caught:
        globs.read(pattern)
    assert caught.value.fix


@pytest.fixture
def in_english(postgres: Any) -> Iterator[Engine]:
    """A database that sorts as a dictionary does: `a` before `B`, and `_` before both."""
    said = postgres.sql("SELECT count(*) FROM pg_collation WHERE collname = 'en-US-x-icu'")
    if said.strip() == "0" or int(postgres.sql("SHOW server_version_num")) < 150_000:
        pytest.skip("this PostgreSQL makes no database that sorts as a language does")
    url = postgres.new_database()
    name = url.rpartition("/")[2]
    postgres.sql(f"DROP DATABASE {name}")
    postgres.sql(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    engine = open_database(url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("few", [search.FEW, 2])
def test_a_database_that_sorts_as_a_language_does_finds_the_same(
    in_english: Engine, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(search, "WINDOW", 4)
    names = ["ab", "a-b", "aB", "a_b", "A-b", "B", "a.b", "b", "a-B7", "a7", "ba", "a-"]
    with in_english.begin() as conn:
        assert conn.execute(text("SELECT 'a' < 'B'")).scalar(), "sorts by bytes"
        conn.execute(insert(Job), [{"name": name, "submitted_at": 1.0} for name in names])
    for pattern in ("a-*", "a*", "A*", "a?b", "*b", "a[!-]*", "a-B*", "B?", "*"):
        expected = [id for id, name in enumerate(names, 1) if fnmatchcase(name, pattern)][::-1]
        with in_english.connect() as conn:
            assert search.find_ids(conn, Filter(glob=globs.read(pattern))) == expected, pattern
            conn.execute(text("SET LOCAL enable_seqscan = off"))
            said = conn.execute(text("EXPLAIN SELECT id FROM job WHERE name ~>=~ 'a-' AND name ~<~ 'a.'")).scalars()
            assert re.search("ix_job_name_id.*Index Cond: .*~>=~", "".join(said))


@pytest.fixture
def ask(tmp_path: Path, database_url: str) -> Iterator[Any]:
    """Calls the API of a controller with jobs 1 to 6; what it answers, after its status."""
    url = "" if database_url.startswith("sqlite") else database_url
    daemon = Daemon(Settings(tmp_path, database_url=url), ManualClock())
    headers = {"Authorization": f"Bearer {daemon.services.keyring.user_token}"}
    client = TestClient(create_app(daemon.services), base_url="http://127.0.0.1", headers=headers)

    def called(method: str, path: str, **more: Any) -> tuple[int, Any]:
        answer = client.request(method, f"/api/v1{path}", **more)
        return answer.status_code, answer.json()

    for name in ("train-1", "bert-eval", "train-2", "train-3", "gpt-eval", "train-4"):
        assert called("POST", "/jobs", json={"name": name, "tasks": [{"run": "true"}], "user": "ada"})[0] == 201
    yield called
    daemon.socket.close()
    daemon.close()


def test_the_queue_takes_a_pattern_page_by_page_and_counts_all(ask: Any) -> None:
    def ids(**query: Any) -> list[int]:
        status, page = ask("GET", "/jobs", params=query)
        assert status == 200
        assert page["total"] == 6, "counts are of every job, whatever is listed"
        return [job["job_id"] for job in page["jobs"]]

    assert ids(name="train-*", limit=3) == [6, 4, 3]
    assert ids(name="train-*", limit=3, before=3) == [1]
    assert ids(name="*-eval", skip_finished=1) == [5, 2]
    assert ids(name="train-[!1-2]") == [6, 4]
    assert ids(name="train-*", ids="1,2,3") == [3, 1]
    assert ids(name="train-*", status="SUCCEEDED") == []
    assert ids(name="train-") == [], "without a wildcard it is a whole name"
    assert ids(name="bert-eval") == [2]


def test_a_bad_pattern_is_refused_and_none_cancels(ask: Any) -> None:
    status, told = ask("GET", "/jobs", params={"name": "train-[12"})
    assert (status, told["error"]["where"]) == (400, "name")
    status, told = ask("POST", "/jobs/cancel", json={"name": "train-*"})
    assert (status, told["error"]["where"]) == (400, "name")
    assert "jobs queue --skip-finished --name 'train-*'" in told["error"]["fix"]
    assert ask("GET", "/jobs")[1]["counts"] == {"PENDING": 6}
