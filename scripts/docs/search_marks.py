"""Marks the HTML of a page for the search: what it must find besides the text, and what it must leave out."""

from __future__ import annotations

import re

_PERMALINK = '<a class="headerlink"'
_DOTTED_KEY = re.compile(r"<td><code>(?P<path>[a-z_]+(?:\.[^<.\s]+|\.&lt;[^<.\s]+)+)</code>")


def mark(html: str) -> str:
    """`html` in which the search leaves out the ¶ of headings, and finds `a.b.c` also by `b` and by `c`."""
    return _DOTTED_KEY.sub(_with_parts, html).replace(_PERMALINK, f"{_PERMALINK} data-pagefind-ignore")


def _with_parts(match: re.Match[str]) -> str:
    words = " ".join(part for part in match["path"].split(".") if not part.startswith("&lt;"))
    return f'<td><code data-words="{words}" data-pagefind-index-attrs="data-words">{match["path"]}</code>'
