"""Whether a file is named after the step that it belongs to.

`model_70.pt` and `step_000070/shard_1.bin` are named after step 70; `latest.pt` and `metrics.jsonl` after none. A file
named after its step belongs to that step alone: it never changes again. It is removed with its checkpoint if other
steps have a file of the same pattern; a number alone may mean anything. Any other file may be shared by checkpoints, so
this library never deletes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

_ALIAS = re.compile(r"(?<![A-Za-z0-9])(latest|last|newest|current|best)(?![A-Za-z0-9])")
_LOG = re.compile(r"\.(log|out|err|csv|jsonl|txt)$|tfevents")
_MAX_OCCURRENCES = 4  # of the step in one path that are looked at


def is_named_after(path: str, step: int) -> bool:
    """Whether the relative path contains `step` as a number, with or without leading zeros."""
    return _number(step).search(path) is not None


def templates(path: str, step: int) -> set[str]:
    """The patterns that the path, or a folder of it, may have been made by: `{step}` in place of some of the step's
    occurrences. The names of one file at two steps have a pattern in common; `tokenizer_v1.json`, which was written
    once, has none in common with any file of another step."""
    texts: set[str] = set()
    for end in [match.start() for match in re.finditer("/|$", path)]:
        part = path[:end]
        places = [match.span() for match in _number(step).finditer(part)][-_MAX_OCCURRENCES:]
        if not places or "/" in part[places[-1][1] :]:
            continue  # the number is in a folder of it, which was looked at already
        for chosen in range(1, 1 << len(places)):
            text = part
            for index in reversed(range(len(places))):
                if chosen >> index & 1:
                    text = text[: places[index][0]] + "{step}" + text[places[index][1] :]
            texts.add(text)
    return texts


def is_dispensable(path: str, step: int, others: Collection[str]) -> bool:
    """Whether a load can do without the file: it is a log, or its name is that of a file of the step, with a word
    such as `latest` in place of the step (`model_latest.pt` beside `model_70.pt`) or alone (`latest.pt`).

    `others`: the paths of the checkpoint."""
    folder, _, name = path.rpartition("/")
    if _LOG.search(name):
        return True
    named = {template(other, step) for other in others if is_named_after(other, step)}
    if _ALIAS.sub("{step}", path) in named:
        return True
    stem, _, suffix = name.partition(".")
    own = (other.rpartition("/") for other in named)
    return _ALIAS.fullmatch(stem) is not None and any(
        (other_folder, other.partition(".")[2]) == (folder, suffix) for other_folder, _, other in own
    )


def template(path: str, step: int) -> str:
    """The path with `{step}` in place of the step: equal for the same file of two checkpoints."""
    return _number(step).sub("{step}", path)


@lru_cache(maxsize=64)
def _number(step: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\d)0*{step}(?!\d)")
