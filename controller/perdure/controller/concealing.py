"""Keeps secrets that were put into other fields (`workdir: {url: https://${TOKEN}@…}`) out of what is stored in clear.

The client puts variables in. What is stored has `${NAME}` in their place again, and a node's spec has them put in once
more. No other `${NAME}` of a secret can be there: the client leaves none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


def conceal(value: Any, secrets: Mapping[str, str]) -> Any:
    """`value` with every secret in its texts, keys included, replaced by its name."""
    names = {secret: name for name, secret in secrets.items() if secret}
    if not names:
        return value
    # The longest first: one may be a part of another.
    anywhere = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return _mapped(value, lambda text: anywhere.sub(lambda found: f"${{{names[found[0]]}}}", text))


def reveal(value: Any, secrets: Mapping[str, str]) -> Any:
    """What was concealed, as it was."""
    if not secrets:
        return value
    anywhere = re.compile(r"\$\{(" + "|".join(map(re.escape, secrets)) + r")\}")
    return _mapped(value, lambda text: anywhere.sub(lambda found: secrets[found[1]], text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [_mapped(item, change) for item in value]
        case dict():
            return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
        case _:
            return value
