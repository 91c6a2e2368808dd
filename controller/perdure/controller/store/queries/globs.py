"""Patterns of job names: `*` matches any text, `?` one character, `[a-z]` one of these, `[!a-z]` one of the others."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

ALPHABET = string.digits + string.ascii_letters + "_.-"
"""The characters of names."""
WILDCARDS = "*?["
_MAX_LENGTH = 200
_PARTS = re.compile(r"(?P<text>[A-Za-z0-9_.-]+)|(?P<any>\*+)|(?P<one>\?)|\[(?P<set>[!^]?[^]]+)\]")
_RANGE = re.compile(r"(.)-(.)|(.)")


class BadGlob(ValueError):
    """An invalid pattern. `fix` says what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True)
class Glob:
    """A pattern in the syntax of each database."""

    prefix: str  # the text with which every matching name begins
    sqlite: str  # for GLOB
    like: str | None  # for PostgreSQL's LIKE; None if LIKE cannot express the pattern
    regex: str  # for PostgreSQL's `~`; Python's `re` takes exponential time for some

    @property
    def after_prefix(self) -> str:
        """The smallest text, in byte order, above all texts that begin with `prefix`, which is not empty."""
        return self.prefix[:-1] + chr(ord(self.prefix[-1]) + 1)


def is_glob(name: str) -> bool:
    """Whether `name` is a pattern. Names of jobs never are."""
    return any(character in name for character in WILDCARDS)


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether `name` is one of the names and patterns. Raises `BadGlob`.

    `fnmatch` does not backtrack over a `*` that has matched, as `re` does: with many of them it would never end, and no
    other thread would run meanwhile.
    """
    return any(name == one or (is_glob(one) and fnmatchcase(name, parse(one).sqlite)) for one in patterns)


def parse(pattern: str) -> Glob:
    """Translate a pattern. Raises `BadGlob`."""
    if len(pattern) > _MAX_LENGTH:
        raise BadGlob(f"a pattern of {len(pattern)} characters is too long", f"give at most {_MAX_LENGTH}")
    prefix, sqlite, like, regex, position = "", "", "", "", 0
    has_sets = False
    while position < len(pattern):
        part = _PARTS.match(pattern, position)
        if part is None:
            raise _unreadable(pattern, position)
        if text := part["text"]:
            prefix = text if position == 0 else prefix
            sqlite, like, regex = sqlite + text, like + text.replace("_", r"\_"), regex + text.replace(".", r"\.")
        elif part["set"]:
            chosen, has_sets = _one_of(part["set"], pattern), True
            sqlite, regex = sqlite + chosen, regex + chosen
        else:
            wildcard = ("*", "%", ".*") if part["any"] else ("?", "_", ".")
            sqlite, like, regex = sqlite + wildcard[0], like + wildcard[1], regex + wildcard[2]
        position = part.end()
    return Glob(prefix, sqlite, None if has_sets else like, f"^{regex}$")


def _one_of(words: str, pattern: str) -> str:
    """The set in brackets in a form that all three syntaxes share: no range, no negation, a `-` first."""
    is_negated = words[0] in "!^" and len(words) > 1
    chosen: set[str] = set()
    for first, last, single in _RANGE.findall(words[1:] if is_negated else words):
        if single:
            chosen.add(single)
        elif not (first <= last and {first, last} <= set(ALPHABET)):
            raise BadGlob(f"{pattern!r}: {first}-{last} is not a range", "write ranges as [a-z] or [0-9]")
        else:
            chosen.update(c for c in ALPHABET if first <= c <= last)
    if unknown := sorted(chosen - set(ALPHABET)):
        raise _invalid_character(unknown[0], pattern)
    if is_negated:
        chosen = set(ALPHABET) - chosen
    if not chosen:
        raise BadGlob(f"{pattern!r}: [{words}] matches no character", "remove it")
    return f"[{''.join(sorted(chosen))}]"


def _unreadable(pattern: str, at: int) -> BadGlob:
    if pattern[at] != "[":
        return _invalid_character(pattern[at], pattern)
    if pattern.startswith("[]", at):
        return BadGlob(f"{pattern!r}: the brackets are empty", "write a set as [abc] or [a-z]")
    return BadGlob(f"{pattern!r}: no ] follows the [", "write a set as [abc] or [a-z]")


def _invalid_character(character: str, pattern: str) -> BadGlob:
    message = f"{pattern!r}: names of jobs do not contain {character!r}"
    return BadGlob(message, "names consist of letters, digits, '-', '_' and '.'; wildcards are * ? and [a-z]")
