"""Patterns of job names."""

from __future__ import annotations

import re
import sqlite3
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.store.queries import globs
from perdure.controller.store.queries.globs import BadGlob

CHARACTERS = "aB_.-7"


NAMES = st.text(CHARACTERS, max_size=6)


PATTERNS = st.lists(
    st.sampled_from([*CHARACTERS, "*", "**", "?", "[aB]", "[!a7]", "[a-z]", "[!0-9]", "[-_]", "[.]", "[!A-Z_-]"]),
    max_size=6,
).map("".join)


@given(PATTERNS, NAMES)
def test_parse__matches_like_a_shell_pattern(pattern: str, name: str) -> None:
    glob, expected = globs.parse(pattern), fnmatchcase(name, pattern)
    assert bool(re.fullmatch(glob.regex, name)) == expected
    assert globs.matches_any(name, [pattern]) == expected
    with sqlite3.connect(":memory:") as conn:
        assert conn.execute("SELECT ? GLOB ?", (name, glob.sqlite)).fetchone() == (expected,)
    if expected:
        assert name.startswith(glob.prefix)
        assert not glob.prefix or glob.prefix <= name < glob.after_prefix


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("train-[12", "no ] follows"),
        ("[]", "the brackets are empty"),
        ("*[z-a]", "z-a is not a range"),
        ("[!A-Za-z0-9_.-]", "matches no character"),
        ("my train*", "names of jobs do not contain ' '"),
        ("{a,b}*", "names of jobs do not contain '{'"),
        ("*%", "names of jobs do not contain '%'"),
        ("a*\x00", r"names of jobs do not contain '\\x00'"),
        ("é*", "names of jobs do not contain 'é'"),
        ("*" + "a" * 200, "201 characters is too long"),
    ],
)
def test_parse__rejects_invalid_patterns(pattern: str, message: str) -> None:
    assert globs.is_glob(pattern)
    with pytest.raises(BadGlob, match=message) as caught:
        globs.parse(pattern)
    assert caught.value.fix


def test_matches_any__of_many_wildcards_ends() -> None:
    assert not globs.matches_any("a" * 63, ["*a" * 30 + "*b"])
