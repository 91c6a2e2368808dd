"""What is wrong with a task, said in one way everywhere: where, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]

_SHOWN_CHARS = 60
_SHOWN_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `message` says what was found, `fix` what is allowed or what to do.

    `field` is a path such as `resources.accelerators`, or "" for the whole document. `line` and `column` count from 1.
    """

    field: str
    message: str
    fix: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def place(self) -> str:
        """`file:line`, as much of it as is known; "" for a value that no text stands behind."""
        if self.line is None:
            return self.file or ""
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.place, self.field) if part)
        return f"{where}{self.message}" + (f"; {self.fix}" if self.fix else "")


class TaskError(ValueError):
    """A task that can not be accepted. Holds everything that is wrong with it, not just the first thing."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        files = {problem.file for problem in self.problems}
        subject = (files.pop() if len(files) == 1 else None) or "the task"
        lines = [f"{subject} has {len(self.problems)} problems:", *(f"  {p}" for p in self.problems[:_SHOWN_PROBLEMS])]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"  … and {len(self.problems) - _SHOWN_PROBLEMS} more")
        return "\n".join(lines)


class Refused(ValueError):
    """A single value that can not be read; whoever knows its place makes a `Problem` of it."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def field_name(path: Path) -> str:
    """`("file_mounts", "/data", "name")` → `file_mounts[/data].name`."""
    text = ""
    for part in path:
        if not text:
            text = str(part)
        elif isinstance(part, str) and part.replace("_", "").isalnum():
            text += f".{part}"
        else:
            text += f"[{part}]"
    return text


def shown(value: object) -> str:
    """A value as an error text names it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            text = value if len(value) <= _SHOWN_CHARS else value[: _SHOWN_CHARS - 1] + "…"
            return repr(text)
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def printable(text: str) -> str:
    """`text` as it can be written in UTF-8: half of a surrogate pair is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def nearest(name: object, options: Iterable[str]) -> str | None:
    """The option that `name` was probably meant to be, or None."""
    import difflib  # only needed once something is wrong

    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def choice_fix(name: object, options: Sequence[str]) -> str:
    """What to do about a name that is none of `options`."""
    near = nearest(name, options)
    allowed = f"allowed: {', '.join(options)}"
    return f"did you mean {near!r}? {allowed}" if near else allowed
