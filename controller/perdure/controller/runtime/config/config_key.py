"""The keys of config.yaml as data. Readers accept exactly the keys described; the documentation is generated from them.

Each module that reads a part of config.yaml describes its keys in a tuple; `runtime.config.reference` collects all
of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ConfigKey:
    """One key of config.yaml."""

    path: str  #: dotted, such as `listen.port`; `<name>` stands for a name that the user chooses
    type: str  #: what to write, such as "text" or "list of text"
    default: str  #: the value if the key is missing, as the user would write it; or what happens then
    meaning: str  #: one sentence
    unit: str = ""  #: of a number, such as "s" or "GiB"


def child_names(keys: Iterable[ConfigKey], path: str = "") -> tuple[str, ...]:
    """The names directly below `path` ("" for the whole file), each once, in the order of `keys`."""
    prefix = f"{path}." if path else ""
    below = (key.path.removeprefix(prefix) for key in keys if key.path.startswith(prefix))
    return tuple(dict.fromkeys(name.partition(".")[0] for name in below))
