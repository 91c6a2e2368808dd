"""Env files as people write them."""

from __future__ import annotations

import pytest

from perdure.sdk import envfile


def parsed(text, **environ):
    return envfile.parse(text, where="a.env", environ=environ)


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
def test_reads(text, values):
    assert parsed(text) == values


def test_a_bare_name_takes_the_callers_value():
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
def test_names_the_line_that_is_wrong(text, where):
    with pytest.raises(envfile.EnvFileError) as caught:
        parsed(text)
    assert caught.value.where == where
    assert caught.value.fix


def test_an_error_does_not_show_the_value():
    with pytest.raises(envfile.EnvFileError) as caught:
        parsed("PASSWORD='hunter2")
    assert "hunter2" not in str(caught.value)


def test_reads_files_and_names_one_that_is_not_there(tmp_path):
    (tmp_path / "a.env").write_text("A=1\n")
    assert envfile.read(tmp_path / "a.env", environ={}) == {"A": "1"}
    with pytest.raises(envfile.EnvFileError, match="No such file"):
        envfile.read(tmp_path / "b.env", environ={})
    (tmp_path / "c.env").write_bytes(b"A=\xff\xfe")
    with pytest.raises(envfile.EnvFileError, match="UTF-8"):
        envfile.read(tmp_path / "c.env", environ={})


def test_assignments_of_options():
    assert envfile.assignment("A=b=c", option="--env", environ={}) == ("A", "b=c")
    assert envfile.assignment("A=", option="--env", environ={"A": "other"}) == ("A", "")
    assert envfile.assignment("A", option="--env", environ={"A": "mine"}) == ("A", "mine")
    with pytest.raises(envfile.EnvFileError, match="not set in your environment"):
        envfile.assignment("A", option="--env", environ={})
    with pytest.raises(envfile.EnvFileError, match="no name"):
        envfile.assignment("A-B=1", option="--env", environ={})
