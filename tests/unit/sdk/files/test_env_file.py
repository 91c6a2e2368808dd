"""Parsing of env files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.sdk.files import env_file


def parsed(text: str, **environ: str) -> dict[str, str]:
    return env_file.parse(text, where="a.env", environ=environ)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1", {"A": "1"}),
        ("A=1\n\n# a comment\n  # another\nB=2\n", {"A": "1", "B": "2"}),
        ("export A=1\nexport  B = 2 ", {"A": "1", "B": "2"}),
        ("A=", {"A": ""}),
        ("A=''\nB=\"\"", {"A": "", "B": ""}),
        ("URL=postgres://u:p@h/db?a=b==&c", {"URL": "postgres://u:p@h/db?a=b==&c"}),
        ("A=one two  # why", {"A": "one two"}),
        ("A=no#comment", {"A": "no#comment"}),
        ("A=# nothing", {"A": ""}),
        ("A='single # $HOME \\n'", {"A": "single # $HOME \\n"}),
        ('A="say \\"hi\\"\\tand\\nbye" # why', {"A": 'say "hi"\tand\nbye'}),
        ('KEY="-----BEGIN\nabc=\n-----END"\nB=2', {"KEY": "-----BEGIN\nabc=\n-----END", "B": "2"}),
        ("A=$HOME/${X}", {"A": "$HOME/${X}"}),
        ("A=it's", {"A": "it's"}),
        ("A=1\r\nB='x'\r\n", {"A": "1", "B": "x"}),
        ("\ufeffA=1", {"A": "1"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=ünïcode", {"A": "ünïcode"}),
        ("", {}),
    ],
)
def test_env_file__parses_lines(text: str, values: dict[str, str]) -> None:
    assert parsed(text) == values


def test_env_file__bare_name_takes_the_callers_value() -> None:
    assert parsed("TOKEN\nexport OTHER # mine", TOKEN="t=1", OTHER="o") == {"TOKEN": "t=1", "OTHER": "o"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("A=1\n1B=2", "a.env:2"),
        ("A=1\n\nwhat is this", "a.env:3"),
        ('A="open\nB=2', "a.env:1"),
        ("A='x' trailing", "a.env:1"),
        ("A=1\nMISSING", "a.env:2"),
    ],
)
def test_env_file__reports_the_wrong_line(text: str, where: str) -> None:
    with pytest.raises(env_file.EnvFileError) as caught:
        parsed(text)
    assert caught.value.where == where
    assert caught.value.fix


def test_env_file_error__hides_the_value() -> None:
    with pytest.raises(env_file.EnvFileError) as caught:
        parsed("PASSWORD='hunter2")
    assert "hunter2" not in str(caught.value)


def test_read_env_file__reports_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    assert env_file.read_env_file(tmp_path / "a.env", environ={}) == {"A": "1"}
    with pytest.raises(env_file.EnvFileError, match="it does not exist"):
        env_file.read_env_file(tmp_path / "b.env", environ={})
    (tmp_path / "c.env").write_bytes(b"A=\xff\xfe")
    with pytest.raises(env_file.EnvFileError, match="UTF-8"):
        env_file.read_env_file(tmp_path / "c.env", environ={})


@pytest.mark.timeout(20)
def test_read_env_file__refuses_pipes_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(env_file.EnvFileError, match="not a regular file"):
            env_file.read_env_file(path, environ={})


def test_read_env_file__accepts_the_output_of_a_command() -> None:
    read, write = os.pipe()
    os.write(write, b"A=1\n")
    os.close(write)
    try:
        assert env_file.read_env_file(f"/dev/fd/{read}", environ={}) == {"A": "1"}
    finally:
        os.close(read)


def test_parse_assignment__accepts_values_and_names() -> None:
    assert env_file.parse_assignment("A=b=c", option="--env", environ={}) == ("A", "b=c")
    assert env_file.parse_assignment("A=", option="--env", environ={"A": "other"}) == ("A", "")
    assert env_file.parse_assignment("A", option="--env", environ={"A": "mine"}) == ("A", "mine")
    with pytest.raises(env_file.EnvFileError, match="not set in your environment"):
        env_file.parse_assignment("A", option="--env", environ={})
    with pytest.raises(env_file.EnvFileError, match="not a variable name"):
        env_file.parse_assignment("A-B=1", option="--env", environ={})
