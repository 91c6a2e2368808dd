"""Help that teaches, and errors that are a line and an exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perdure.cli import jobs, main

GROUPS = {(): main.COMMANDS, ("jobs",): jobs.COMMANDS}
COMMANDS = [(*group, name) for group, commands in GROUPS.items() for name in commands]


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_every_help_shows_examples(perdure, words):
    result = perdure(*words, "-h")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert "perdure " + " ".join(words) in result.output.partition("Examples:")[2]


@pytest.mark.parametrize("words", [("controller", name) for name in ("start", "stop", "status", "logs")])
def test_help_of_the_controllers_commands(perdure, words):
    assert perdure(*words, "--help").exit_code == 0


def test_help_loads_neither_the_sdk_nor_http_nor_yaml():
    script = (
        "import sys\n"
        "from perdure.cli.main import cli\n"
        "try: cli(['--help'], prog_name='perdure')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('perdure.sdk', 'http.client', 'yaml', 'ssl', 'subprocess') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_queue_loads_no_yaml_and_no_uploads(named):
    script = (
        "import sys\n"
        "from perdure.cli.main import cli\n"
        "try: cli(['jobs', 'queue'], prog_name='perdure')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('yaml', 'perdure.sdk.uploads', 'tarfile', 'subprocess') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_mistyped_command(perdure):
    result = perdure("jobs", "lauch", "x.yaml")
    assert result.exit_code == 2
    assert "Did you mean 'launch'?" in result.stderr


def test_the_version(perdure):
    from importlib.metadata import version

    assert perdure("--version").stdout == f"perdure {version('perdure')}\n"


def test_a_controller_that_is_away(perdure, monkeypatch):
    monkeypatch.setenv("PERDURE_ENDPOINT", "http://127.0.0.1:1")
    result = perdure("jobs", "queue")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the controller does not answer")
    assert "Traceback" not in result.output


def test_a_wrong_token(perdure, monkeypatch):
    monkeypatch.setenv("PERDURE_TOKEN", "wrong")
    result = perdure("jobs", "queue")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: the controller does not know this token\n"
        "  check PERDURE_TOKEN (or the file that PERDURE_TOKEN_FILE names)\n"
    )


def test_a_fault_of_our_own_is_a_line_too_and_debug_shows_the_rest(in_process, controller):
    controller.add("NO_SUCH_STATUS")
    process = in_process("jobs", "show", "1")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "something unexpected happened: ValueError" in err
    assert "Traceback" not in err
    process = in_process("jobs", "show", "1", PERDURE_DEBUG="1")
    assert "Traceback" in process.communicate(timeout=30)[1]


def test_a_reader_that_leaves_early_is_no_fault(in_process, controller):
    for _ in range(40):
        controller.add("RUNNING", name="x" * 4000)
    process = in_process("jobs", "queue", "-o", "json")
    process.stdout.read(10)
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(30) in (0, 1)


def test_completion(perdure, in_process):
    for shell in ("bash", "zsh", "fish"):
        result = perdure("completion", shell)
        assert result.exit_code == 0
        assert "_PERDURE_COMPLETE" in result.stdout
        assert result.stdout.startswith("# To have it in every shell:")
    script = "from perdure.cli.main import main; main()"
    asked = {"_PERDURE_COMPLETE": "bash_complete", "COMP_WORDS": "perdure jobs la", "COMP_CWORD": "2"}
    import os

    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "plain,launch\n"
