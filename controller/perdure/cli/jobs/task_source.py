"""The source of a launched task: a YAML file, YAML on stdin, or a command."""

from __future__ import annotations

import os
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
    """The job that the words describe. Raises `TaskError`, or `Failure` for a missing file."""
    from perdure.sdk.dag import Dag

    if len(entrypoint) == 1:
        word = entrypoint[0]
        if word == "-":
            return Dag.from_yaml(sys.stdin.read() + "\n", envs=envs, secrets=secrets, name=name)
        if is_yaml(word):
            return Dag.from_yaml(require_file(Path(word).expanduser()), envs=envs, secrets=secrets, name=name)
        if Path(word).is_dir():
            raise Failure(f"{word} is a directory\n  specify a task YAML or a command", EXIT_WRONG_INPUT)
    elif entrypoint[0].endswith(SUFFIXES) and Path(entrypoint[0]).is_file() and not os.access(entrypoint[0], os.X_OK):
        fix = f"give the YAML alone, with values as --env K=V; to run it as a program: bash {shlex.join(entrypoint)}"
        raise Failure(f"{entrypoint[0]} is a task YAML, and takes no arguments\n  {fix}", EXIT_WRONG_INPUT)
    dag = Dag.from_command(command(entrypoint), name=name)
    for task in dag.tasks:
        task.update_envs(envs)
        task.update_secrets(secrets)
    return dag


def is_yaml(word: str) -> bool:
    """Whether a single word names a YAML file, as opposed to a command that ends in one."""
    return word.endswith(SUFFIXES) and (len(word.split()) == 1 or Path(word).expanduser().is_file())


def command(words: Sequence[str]) -> str:
    """The shell command: one word is a script, several are a program and its arguments."""
    return words[0] if len(words) == 1 else shlex.join(words)


def require_file(path: Path) -> Path:
    """Return `path` if the file exists; else raise a `Failure` that suggests files with similar names."""
    try:
        if path.is_file():
            return path
    except PermissionError:
        return path  # in a folder that this user may not list: opening the file reports it
    what = "is a directory" if path.is_dir() else "does not exist"
    similar = _similar_files(path)
    hint = (
        f"did you mean {' or '.join(similar)}?"
        if similar
        else "to run a command with this ending, put `bash -c` before it"
    )
    raise Failure(f"{path} {what}\n  {hint}", EXIT_WRONG_INPUT)


def _similar_files(path: Path, max_files: int = 3) -> list[str]:
    """Files with similar names in the folder of `path` and its subfolders."""
    from difflib import get_close_matches

    folder = path.parent if path.parent.is_dir() else Path()
    files = [
        file
        for pattern in ("*", "*/*")
        for suffix in SUFFIXES
        for file in folder.glob(pattern + suffix)
        if file.is_file()
    ]
    by_name = {str(file): file.stem for file in sorted(files)[:1000]}  # the ending is no likeness
    close = get_close_matches(path.stem, set(by_name.values()), n=max_files, cutoff=0.6)
    return [file for name in close for file, file_name in by_name.items() if file_name == name][:max_files]
