"""Patterns of job names: `*` is any characters, `?` any one, `[a-z]` one of these, `[!a-z]` one of the others."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

ALPHABET = string.digits + string.ascii_letters + "_.-"
"""What names consist of."""
WILDCARDS = "*?["
_MOST = 200
_PARTS = re.compile(r"(?P<text>[A-Za-z0-9_.-]+)|(?P<any>\*+)|(?P<one>\?)|\[(?P<set>[!^]?[^]]+)\]")
_RANGE = re.compile(r"(.)-(.)|(.)")


class BadGlob(ValueError):
    """A pattern that can not be read. `fix` says what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True)
class Glob:
    """A pattern in the words of either database, and the text that every name which matches begins with.

    `sqlite`: for GLOB. `like`: for PostgreSQL's LIKE, or None where that has no words for it; `regex`: for its `~`.
    """

    prefix: str
    sqlite: str
    like: str | None
    regex: str

    @property
    def after_prefix(self) -> str:
        """The least text, byte by byte, beyond all that begin with `prefix`, which is not empty."""
        return self.prefix[:-1] + chr(ord(self.prefix[-1]) + 1)


def is_glob(name: str) -> bool:
    """Whether `name` is a pattern. No job's name is."""
    return any(character in name for character in WILDCARDS)


def read(pattern: str) -> Glob:
    """Raises `BadGlob`."""
    if len(pattern) > _MOST:
        raise BadGlob(f"a pattern of {len(pattern)} characters is too long", f"give at most {_MOST}")
    prefix, sqlite, like, regex, at = "", "", "", "", 0
    has_sets = False
    while at < len(pattern):
        part = _PARTS.match(pattern, at)
        if part is None:
            raise _unreadable(pattern, at)
        if text := part["text"]:
            prefix = text if at == 0 else prefix
            sqlite, like, regex = sqlite + text, like + text.replace("_", r"\_"), regex + text.replace(".", r"\.")
        elif part["set"]:
            chosen, has_sets = _one_of(part["set"], pattern), True
            sqlite, regex = sqlite + chosen, regex + chosen
        else:
            so = ("*", "%", ".*") if part["any"] else ("?", "_", ".")
            sqlite, like, regex = sqlite + so[0], like + so[1], regex + so[2]
        at = part.end()
    return Glob(prefix, sqlite, None if has_sets else like, f"^{regex}$")


def _one_of(words: str, pattern: str) -> str:
    """What stands between the brackets as a set that all three read alike: no range, no negation, a `-` first."""
    is_negated = words[0] in "!^" and len(words) > 1
    chosen: set[str] = set()
    for first, last, single in _RANGE.findall(words[1:] if is_negated else words):
        if single:
            chosen.add(single)
        elif not (first <= last and {first, last} <= set(ALPHABET)):
            raise BadGlob(f"{pattern!r}: {first}-{last} is no range", "write ranges as [a-z] or [0-9]")
        else:
            chosen.update(c for c in ALPHABET if first <= c <= last)
    if unknown := sorted(chosen - set(ALPHABET)):
        raise _no_name_has(unknown[0], pattern)
    if is_negated:
        chosen = set(ALPHABET) - chosen
    if not chosen:
        raise BadGlob(f"{pattern!r}: no character is left by [{words}]", "leave it out")
    return f"[{''.join(sorted(chosen))}]"


def _unreadable(pattern: str, at: int) -> BadGlob:
    if pattern[at] != "[":
        return _no_name_has(pattern[at], pattern)
    if pattern.startswith("[]", at):
        return BadGlob(f"{pattern!r}: there is nothing between the brackets", "write one of several as [abc] or [a-z]")
    return BadGlob(f"{pattern!r}: no ] follows the [", "write one of several as [abc] or [a-z]")


def _no_name_has(character: str, pattern: str) -> BadGlob:
    message = f"{pattern!r}: no job's name has {character!r}"
    return BadGlob(message, "names consist of letters, digits, '-', '_' and '.'; wildcards are * ? and [a-z]")
