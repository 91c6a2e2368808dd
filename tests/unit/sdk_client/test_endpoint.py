"""Where the controller is found, and that the embedded one is started once, by whoever needs it first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from perdure.sdk import endpoint, hosted
from perdure.sdk.client import Client
from perdure.sdk.endpoint import NoController

ENSURE = "from perdure.sdk import endpoint; e = endpoint.ensure(); print(e.url, e.pid, e.token)"


def ensure_in_process(environ):
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_the_environment_names_a_controller(tmp_path):
    named = {"PERDURE_ENDPOINT": "https://h.example.org/", "PERDURE_HOME": str(tmp_path)}
    with pytest.raises(NoController, match="there is no token"):
        endpoint.find(named)
    (tmp_path / "token").write_text("from the home\n")
    assert endpoint.find(named).token == "from the home"
    (tmp_path / "t").write_text("from a file\n")
    assert endpoint.find(named | {"PERDURE_TOKEN_FILE": str(tmp_path / "t")}).token == "from a file"
    found = endpoint.ensure(named | {"PERDURE_TOKEN": "given"})
    assert (found.url, found.token, found.home) == ("https://h.example.org", "given", None)
    with pytest.raises(NoController, match="is no URL"):
        endpoint.find({"PERDURE_ENDPOINT": "localhost:8000", "PERDURE_TOKEN": "t"})


def test_looking_starts_nothing(tmp_path):
    assert endpoint.find({"PERDURE_HOME": str(tmp_path / "home")}) is None
    assert not (tmp_path / "home").exists()


def test_the_first_use_starts_it_and_the_second_finds_it(embedded):
    home, environ = embedded
    code, out, err = finished(ensure_in_process(environ))
    assert code == 0, err
    url, pid, token = out.split()
    assert token == "user-token"
    assert os.getsid(int(pid)) == int(pid), "it has a session of its own, so no terminal ends it"
    assert os.readlink(f"/proc/{pid}/cwd") == str(home)
    assert finished(ensure_in_process(environ))[1] == out
    found = endpoint.find(environ)
    assert found.url == url
    assert endpoint.recorded_pid(home) == int(pid)
    assert Client(found).controller()["pid"] == int(pid)
    assert (home.stat().st_mode & 0o777) == 0o700


def test_two_terminals_start_one(embedded):
    home, environ = embedded
    results = [finished(process) for process in [ensure_in_process(environ) for _ in range(4)]]
    assert {code for code, _, _ in results} == {0}, results
    assert len({out for _, out, _ in results}) == 1
    assert len((home / "starts").read_text().split()) == 1


def test_a_record_of_a_dead_process_is_replaced(embedded):
    home, environ = embedded
    home.mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    (home / "controller.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:1", "pid": ended.pid}))
    code, out, err = finished(ensure_in_process(environ))
    assert code == 0, err
    assert int(out.split()[1]) != ended.pid


@pytest.mark.parametrize("record", ["", "not json", "[]", '{"endpoint": 5, "pid": "x"}'])
def test_a_broken_record_is_no_controller(tmp_path, record):
    (tmp_path / "controller.json").write_text(record)
    assert endpoint.find({"PERDURE_HOME": str(tmp_path)}) is None
    assert endpoint.recorded_pid(tmp_path) is None


def test_another_process_with_the_recorded_number_is_not_taken_for_it(tmp_path):
    (tmp_path / "controller.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:1", "pid": os.getpid()}))
    assert endpoint.recorded_pid(tmp_path) is None


def test_one_that_dies_at_its_start_shows_its_last_words(embedded):
    home, environ = embedded
    home.mkdir()
    (home / "broken").touch()
    (home / "controller.stderr.log").write_text("of an earlier one\n")
    code, _, err = finished(ensure_in_process(environ))
    assert code != 0
    assert "ended with exit code 1 while it started" in err
    assert "the database is of a newer version" in err
    assert str(home / "controller.stderr.log") in err
    assert "of an earlier one" not in err


def test_a_missing_extra_is_one_clear_line(tmp_path):
    """A Python without the daemon's packages: this one, with its site-packages hidden and the SDK alone on its path."""
    import click
    import yaml

    import perdure.sdk

    for package in (click, yaml):
        name = package.__name__
        (tmp_path / name).symlink_to(os.path.dirname(package.__file__))
    roots = [os.path.dirname(os.path.dirname(perdure.sdk.__path__[0])), os.path.join(_repository(), "recovery")]
    environ = {"PYTHONPATH": os.pathsep.join([*roots, str(tmp_path)]), "PERDURE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-S", "-c", ENSURE]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "the controller is not installed here" in done.stderr
    assert "pip install 'perdure[controller]'" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_token_that_others_may_read_is_refused(tmp_path, controller):
    home = tmp_path / "home"
    home.mkdir()
    (home / "controller.json").write_text(json.dumps({"endpoint": controller.url, "pid": 1}))
    (home / "token").write_text("user-token")
    (home / "token").chmod(0o640)
    with pytest.raises(NoController) as caught:
        endpoint.find({"PERDURE_HOME": str(home)})
    assert "mode 0640" in str(caught.value)
    assert f"chmod 600 {home / 'token'}" in str(caught.value)
    (home / "token").chmod(0o600)
    assert endpoint.find({"PERDURE_HOME": str(home)}).token == "user-token"


def test_the_last_lines_of_a_long_log(tmp_path):
    assert endpoint.stderr_tail(tmp_path) == ""
    (tmp_path / endpoint.STDERR_LOG).write_text("".join(f"line {number}\n" for number in range(50_000)))
    assert endpoint.stderr_tail(tmp_path, 2) == "line 49998\nline 49999"


def _repository():
    import perdure.recovery

    return os.path.dirname(os.path.dirname(os.path.dirname(perdure.recovery.__path__[0])))


def test_one_that_was_brought_up_comes_before_ones_own_and_after_the_environments(tmp_path):
    up = hosted.Hosted(hosted.UP, "hosting-1", "local", 8443, url="https://192.0.2.1:8443", token="t", fingerprint="f")
    hosted.write(tmp_path, up)
    found = endpoint.find({"PERDURE_HOME": str(tmp_path)})
    assert (found.url, found.token, found.fingerprint, found.home) == ("https://192.0.2.1:8443", "t", "f", None)
    environ = {"PERDURE_HOME": str(tmp_path), "PERDURE_ENDPOINT": "http://127.0.0.1:1", "PERDURE_TOKEN": "x"}
    assert endpoint.find(environ).url == "http://127.0.0.1:1"
    hosted.write(tmp_path, replace(up, stage=hosted.DOWN))
    assert endpoint.find({"PERDURE_HOME": str(tmp_path)}) is None
    (tmp_path / hosted.FILE).chmod(0o644)
    with pytest.raises(endpoint.NoController, match="others may read"):
        endpoint.find({"PERDURE_HOME": str(tmp_path)})
    (tmp_path / hosted.FILE).chmod(0o600)
    (tmp_path / hosted.FILE).write_text("{")
    with pytest.raises(endpoint.NoController, match="put it back"):
        endpoint.find({"PERDURE_HOME": str(tmp_path)})
