"""Reads env files: the `KEY=value` lines of `--env-file` and `--secret-file`.

What is understood: blank lines, `#` comments, `export KEY=value`; values in single quotes (taken as they are), in
double quotes (`\\n`, `\\t`, `\\"`, `\\\\` are escapes), and bare ones up to ` #`. Quoted values may span lines. A bare
`KEY` takes its value from the caller's environment. Nothing is expanded: `$` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perdure.sdk.endpoint import ClientError

_LINE = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<key>[A-Za-z_][A-Za-z0-9_]*)[ \t]*
        (?:=[ \t]*(?:'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<bare>[^\n]*)))?
        [ \t]*(?:\#[^\n]*)?(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_SKIPPED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class EnvFileError(ClientError):
    """A line that is not `KEY=value`, or a name without a value anywhere."""


def read(path: str | Path, *, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the file at `path`, in its order; the last of two of one name wins. Raises `EnvFileError`."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise EnvFileError(f"can not read the env file: {reason}", where=str(path)) from error
    return parse(text, where=str(path), environ=environ)


def parse(text: str, *, where: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `text`. `where` names it in errors; `environ` gives the values of bare names."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    values: dict[str, str] = {}
    position = 0
    while position < len(text):
        if skipped := _SKIPPED.match(text, position):
            position = skipped.end()
            continue
        line = f"{where}:{text.count(chr(10), 0, position) + 1}"
        found = _LINE.match(text, position)
        if found is None or _is_open_quote(found["bare"]):
            shown = text[position:].splitlines()[0].partition("=")[0]
            raise EnvFileError(
                f"can not read the line that starts with {shown!r}",
                where=line,
                fix="write KEY=value, one to a line; close every quote",
            )
        values[found["key"]] = _value(found, line, environ)
        position = found.end()
    return values


def assignment(text: str, *, option: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """One `K=V`, or `K` for the caller's own value of K, as options such as `--env` take them."""
    key, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise EnvFileError(f"{key!r} is no name of a variable", where=option, fix="write KEY=value")
    return key, value if equals else _inherited(key, option, environ)


def _is_open_quote(bare: str | None) -> bool:
    return bare is not None and bare[:1] in {"'", '"'}


def _value(found: re.Match[str], line: str, environ: Mapping[str, str]) -> str:
    if found["single"] is not None:
        return found["single"]
    if found["double"] is not None:
        return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), found["double"])
    if found["bare"] is not None:
        return re.split(r"(?:^|[ \t])#", found["bare"], maxsplit=1)[0].strip()
    return _inherited(found["key"], line, environ)


def _inherited(key: str, where: str, environ: Mapping[str, str]) -> str:
    if key not in environ:
        raise EnvFileError(f"{key} has no value and is not set in your environment", where=where, fix=f"write {key}=…")
    return environ[key]
