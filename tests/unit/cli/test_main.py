"""The `perdure` command: help with examples, errors as a message and an exit code, and what help imports."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from perdure.cli import main
from perdure.cli.errors import Failure
from perdure.cli.jobs import group as jobs
from perdure.cli.serve import group as serve
from perdure.sdk.connection.client import ApiError
from support.helpers.timing import scaled
from unit.cli.commands import RunPerdure, StartPerdure
from unit.sdk.contract_server import Controller

GROUPS = {(): main.COMMANDS, ("jobs",): jobs.COMMANDS, ("serve",): serve.COMMANDS}
COMMANDS = [(*group, name) for group, commands in GROUPS.items() for name in commands]


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help__shows_examples(perdure: RunPerdure, words: tuple[str, ...]) -> None:
    result = perdure(*words, "-h")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert "perdure " + " ".join(words) in result.output.partition("Examples:")[2]


@pytest.mark.parametrize("words", [("controller", name) for name in ("start", "stop", "status", "logs")])
def test_help__of_controller_commands(perdure: RunPerdure, words: tuple[str, ...]) -> None:
    assert perdure(*words, "--help").exit_code == 0


def test_help__imports_neither_sdk_nor_http_nor_yaml() -> None:
    script = (
        "import sys\n"
        "from perdure.cli.main import cli\n"
        "try: cli(['--help'], prog_name='perdure')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('perdure.sdk', 'http.client', 'yaml', 'ssl', 'subprocess') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_queue__imports_neither_yaml_nor_uploads(server: Controller) -> None:
    script = (
        "import sys\n"
        "from perdure.cli.main import cli\n"
        "try: cli(['jobs', 'queue'], prog_name='perdure')\n"
        "except SystemExit: pass\n"
        "print([m for m in ('yaml', 'perdure.sdk.files.uploads', 'tarfile', 'subprocess') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_mistyped_command__gets_a_suggestion(perdure: RunPerdure) -> None:
    result = perdure("jobs", "lauch", "x.yaml")
    assert result.exit_code == 2
    assert "Did you mean 'launch'?" in result.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("jobs", "dashboard"), "There is no command 'dashboard': use `perdure dashboard`, or `perdure jobs queue"),
        (("show-gpus",), "There is no command 'show-gpus': use `perdure gpus`"),
        (("jobs", "pool", "apply"), "There is no command 'pool': pools are not supported"),
    ],
)
def test_commands_of_skypilot__get_advice(perdure: RunPerdure, words: tuple[str, ...], advice: str) -> None:
    result = perdure(*words)
    assert result.exit_code == 2
    assert advice in result.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("jobs", "launch", "x.yaml", "--async"), "There is no option --async: use -d, which"),
        (("jobs", "launch", "-c", "mine", "x.yaml"), "There is no option -c: every job has machines of its own"),
        (("jobs", "queue", "--refresh"), "There is no option --refresh: what is shown is always up to date"),
        (("jobs", "cancel", "--pool", "p"), "There is no option --pool: pools are not supported"),
        (("jobs", "launch", "--max-duration", "1h", "x.yaml"), "write `max_duration` under `resources.job_recovery`"),
        (("jobs", "queue", "--skip-finnished"), "No such option '--skip-finnished'. Did you mean '--skip-finished'?"),
    ],
)
def test_options_of_skypilot__get_advice(perdure: RunPerdure, words: tuple[str, ...], advice: str) -> None:
    result = perdure(*words)
    assert result.exit_code == 2
    assert advice in result.stderr
    assert f"Usage: perdure {words[0]} {words[1]} " in result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("jobs", "launch", "x.yaml", "--priority", "high"), "'--priority': 'high' is not a whole number."),
        (
            ("jobs", "logs", "train"),
            "'train' is not a whole number. `perdure jobs queue` and `perdure queue` list IDs.",
        ),
        (("autostop", "dev", "-i", "soon"), "'soon' is not a number."),
    ],
)
def test_values_of_options__are_refused_in_plain_words(perdure: RunPerdure, words: tuple[str, ...], text: str) -> None:
    result = perdure(*words)
    assert result.exit_code == 2
    assert text in result.stderr


def test_commands_of_skypilot__are_not_commands_here() -> None:
    assert not main.ELSEWHERE.keys() & main.COMMANDS.keys()
    assert not jobs.ELSEWHERE.keys() & jobs.COMMANDS.keys()


def test_version__is_printed(perdure: RunPerdure) -> None:
    from importlib.metadata import version

    assert perdure("--version").stdout == f"perdure {version('perdure')}\n"


def test_errors__controller_does_not_answer(perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ENDPOINT", "http://127.0.0.1:1")
    result = perdure("jobs", "queue")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the controller at http://127.0.0.1:1 does not answer")
    assert "on that computer: perdure controller status\n" in result.stderr, "here, that command would say the same"
    assert "Traceback" not in result.output


def test_errors__endpoint_with_the_other_scheme(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_ENDPOINT", server.url.replace("http://", "https://"))
    result = perdure("jobs", "queue")
    assert result.exit_code == 1
    assert f"it does not serve TLS: set PERDURE_ENDPOINT={server.url}, or" in result.stderr


def test_errors__wrong_token(perdure: RunPerdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TOKEN", "wrong")
    result = perdure("jobs", "queue")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: the controller rejects this token\n  check PERDURE_TOKEN (or the file that PERDURE_TOKEN_FILE names)\n"
    )


def test_errors__unexpected_exception_with_traceback_only_for_debug(
    in_process: StartPerdure, controller: Controller
) -> None:
    controller.add("NO_SUCH_STATUS")
    process = in_process("jobs", "show", "1")
    _, err = process.communicate(timeout=scaled(30))
    assert process.returncode == 1
    assert "unexpected error: ValueError" in err
    assert "Traceback" not in err
    process = in_process("jobs", "show", "1", PERDURE_DEBUG="1")
    assert "Traceback" in process.communicate(timeout=scaled(30))[1]


def test_errors__closed_pipe_is_not_an_error(in_process: StartPerdure, controller: Controller) -> None:
    for _ in range(40):
        controller.add("RUNNING", name="x" * 4000)
    process = in_process("jobs", "queue", "-o", "json")
    process.stdout.read(10)
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(scaled(30)) in (0, 1)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("job_id", "job 1 has ended\n  wait"),
        ("node", "job 1 has ended\n  wait"),
        ("name", "name: job 1 has ended\n  wait"),
    ],
)
def test_errors__do_not_name_parameters_of_the_api(where: str, text: str) -> None:
    error = ApiError("job 1 has ended", status=409, where=where, fix="wait")
    assert Failure.from_exception(error).message == text


def test_errors__full_disk_is_not_a_bug() -> None:
    text = Failure.from_exception(OSError(errno.ENOSPC, "No space left on device")).message
    assert text == "the output cannot be written: No space left on device\n  free some space"
    assert "bug in Perdure" in Failure.from_exception(OSError(errno.EBADF, "Bad file descriptor")).message


def test_commands_that_take_a_task__have_the_option_that_their_errors_suggest() -> None:
    """An unsupported field ends each of them with `to launch without it: --ignore FIELD`."""
    names = {
        command_path: {parameter.name for parameter in command.params}
        for command_path, command in _commands(main.cli, "perdure")
    }
    takes_task = [path for path, parameters in names.items() if "secret_file" in parameters]
    assert len(takes_task) >= 6
    assert [path for path in takes_task if "ignore" not in names[path]] == []


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from _commands(inner, f"{path} {name}")
