"""What `jobs launch` was given: a YAML file, YAML on stdin, or a command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure

if TYPE_CHECKING:
    from perdure.sdk.dag import Dag

SUFFIXES = (".yaml", ".yml")


def load(entrypoint: Sequence[str], *, envs: dict[str, str], secrets: dict[str, str], name: str | None) -> Dag:
    """The job that the words describe. Raises `TaskError`, or `Failure` for a file that is not there."""
    from perdure.sdk.dag import Dag

    if len(entrypoint) == 1:
        word = entrypoint[0]
        if word == "-":
            return Dag.from_yaml(sys.stdin.read() + "\n", envs=envs, secrets=secrets, name=name)
        if is_yaml(word):
            return Dag.from_yaml(existing(Path(word).expanduser()), envs=envs, secrets=secrets, name=name)
        if Path(word).is_dir():
            raise Failure(f"{word} is a directory\n  give a task YAML, or a command", EXIT_WRONG_INPUT)
    dag = Dag.from_command(command(entrypoint), name=name)
    for task in dag.tasks:
        task.update_envs(envs)
        task.update_secrets(secrets)
    return dag


def is_yaml(word: str) -> bool:
    """Whether a single word names a YAML file, rather than being a command that ends in one."""
    return word.endswith(SUFFIXES) and (len(word.split()) == 1 or Path(word).expanduser().is_file())


def command(words: Sequence[str]) -> str:
    """The shell command: one word is a script as it stands, several are one program with its arguments."""
    return words[0] if len(words) == 1 else shlex.join(words)


def existing(path: Path) -> Path:
    """`path`, if there is such a file; else a `Failure` that names those with nearly its name."""
    try:
        if path.is_file():
            return path
    except PermissionError:
        return path  # in a folder that is closed to this user: reading it says so
    what = "is a directory" if path.is_dir() else "does not exist"
    near = _nearest_files(path)
    hint = f"did you mean {' or '.join(near)}?" if near else "to run a command that ends so, put `bash -c` before it"
    raise Failure(f"{path} {what}\n  {hint}", EXIT_WRONG_INPUT)


def _nearest_files(path: Path, at_most: int = 3) -> list[str]:
    """Files beside `path`, or one folder further down, with nearly its name."""
    from difflib import get_close_matches

    folder = path.parent if path.parent.is_dir() else Path()
    files = [
        file
        for pattern in ("*", "*/*")
        for suffix in SUFFIXES
        for file in folder.glob(pattern + suffix)
        if file.is_file()
    ]
    by_name = {str(file): file.name for file in sorted(files)[:1000]}
    close = get_close_matches(path.name, set(by_name.values()), n=at_most, cutoff=0.6)
    return [file for name in close for file, its_name in by_name.items() if its_name == name][:at_most]
