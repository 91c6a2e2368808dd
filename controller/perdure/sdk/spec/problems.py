"""Problems of a task: where each is, what was found there, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FieldPath = tuple[str | int, ...]

_MAX_VALUE_CHARS = 60
_MAX_LISTED_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """One problem, or one warning."""

    field: str  # a path such as `resources.accelerators`; "" for the whole document
    message: str  # what was found
    fix: str = ""  # what is allowed, or what to do
    file: str | None = None
    line: int | None = None  # from 1
    column: int | None = None  # from 1

    @property
    def place(self) -> str:
        """`file:line`, or as much of it as is known; "" for a value that did not come from a text."""
        if self.line is None:
            return self.file or ""
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"

    @property
    def subject(self) -> tuple[str, str, str]:
        """Equal for problems of one field in several alternatives of `resources`, wherever they were read."""
        return self.field.partition(".")[0], self.field.rpartition(".")[2], self.message

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.place, self.field) if part)
        return f"{where}{self.message}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class UnsupportedField(Problem):
    """A field without effect whose task is not launched, since results could be lost or something else would run."""

    option: str = ""  # what the option --ignore takes to launch without the field


class TaskError(ValueError):
    """A task that cannot be accepted, with all of its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        files = {problem.file for problem in self.problems}
        subject = (files.pop() if len(files) == 1 else None) or "the task"
        lines = [
            f"{subject} has {len(self.problems)} problems:",
            *(f"  {p}" for p in self.problems[:_MAX_LISTED_PROBLEMS]),
        ]
        if len(self.problems) > _MAX_LISTED_PROBLEMS:
            lines.append(f"  … and {len(self.problems) - _MAX_LISTED_PROBLEMS} more")
        return "\n".join(lines)


class InvalidValue(ValueError):
    """A single value that is wrong. The caller, which has its path, turns the error into a Problem."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def field_name(path: FieldPath) -> str:
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


def describe(value: object) -> str:
    """The value as error texts name it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            text = value if len(value) <= _MAX_VALUE_CHARS else value[: _MAX_VALUE_CHARS - 1] + "…"
            return repr(text)
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def printable(text: str) -> str:
    """`text` in a form that UTF-8 can represent: half of a surrogate pair is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def nearest(name: object, options: Iterable[str]) -> str | None:
    """The option that resembles `name` most, or None."""
    import difflib  # imported here because only errors need it

    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def choice_fix(name: object, options: Sequence[str]) -> str:
    """The fix for a name that is not among `options`."""
    near = nearest(name, options)
    allowed = f"allowed: {', '.join(options)}"
    return f"did you mean {near!r}? {allowed}" if near else allowed
