"""Reads env files: the `KEY=value` lines of `--env-file` and `--secret-file`.

Supported: blank lines, `#` comments, `export KEY=value`; values in single quotes (literal), in double quotes (`\\n`,
`\\t`, `\\"`, `\\\\` are escapes), and unquoted up to ` #`. Quoted values may span lines. A bare `KEY` takes its value
from the caller's environment. Nothing is expanded: `$` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perdure.sdk.connection.endpoint import ClientError

_LINE = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<key>[A-Za-z_][A-Za-z0-9_]*)[ \t]*
        (?:=[ \t]*(?:'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<bare>[^\n]*)))?
        [ \t]*(?:\#[^\n]*)?(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_SKIPPED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_OPEN_FILES = ("/dev/fd/", "/dev/stdin")  # of the shell's `<(command)`; other pipes and devices may never end
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class EnvFileError(ClientError):
    """A line that is not `KEY=value`, or a name without a value anywhere."""


def read_env_file(path: str | Path, *, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the file at `path`, in its order. The last one with a name wins. Raises EnvFileError."""
    source = Path(path).expanduser()
    if source.exists() and not source.is_file() and not str(source).startswith(_OPEN_FILES):
        raise EnvFileError("cannot read the env file: it is not a regular file", where=str(path))
    if not source.exists():
        fix = "give another path" if source.is_absolute() else f"relative paths start at {Path.cwd()}"
        raise EnvFileError("cannot read the env file: it does not exist", where=str(path), fix=fix)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise EnvFileError(f"cannot read the env file: {reason}", where=str(path)) from error
    return parse(text, where=str(path), environ=environ)


def parse(text: str, *, where: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `text`. `where` names the text in errors; `environ` has the values of bare names."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    values: dict[str, str] = {}
    position = 0
    while position < len(text):
        if skipped := _SKIPPED.match(text, position):
            position = skipped.end()
            continue
        line = f"{where}:{text.count(chr(10), 0, position) + 1}"
        match = _LINE.match(text, position)
        if match is None or _is_open_quote(match["bare"]):
            start = text[position:].splitlines()[0].partition("=")[0]
            raise EnvFileError(
                f"cannot parse the line that starts with {start!r}",
                where=line,
                fix="write KEY=value, one to a line; close every quote",
            )
        values[match["key"]] = _value(match, line, environ)
        position = match.end()
    return values


def parse_assignment(text: str, *, option: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """One `K=V`, or `K` for the value of K in the caller's environment, as options such as `--env` accept it."""
    key, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise EnvFileError(f"{key!r} is not a variable name", where=option, fix="write KEY=value")
    return key, value if equals else _from_environment(key, option, environ)


def _is_open_quote(bare: str | None) -> bool:
    return bare is not None and bare[:1] in {"'", '"'}


def _value(match: re.Match[str], line: str, environ: Mapping[str, str]) -> str:
    if match["single"] is not None:
        return match["single"]
    if match["double"] is not None:
        return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), match["double"])
    if match["bare"] is not None:
        return re.split(r"(?:^|[ \t])#", match["bare"], maxsplit=1)[0].strip()
    return _from_environment(match["key"], line, environ)


def _from_environment(key: str, where: str, environ: Mapping[str, str]) -> str:
    if key not in environ:
        raise EnvFileError(f"{key} has no value and is not set in your environment", where=where, fix=f"write {key}=…")
    return environ[key]
