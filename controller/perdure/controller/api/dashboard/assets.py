"""The dashboard's static files, as `make dashboard` has built them into the folder `static`.

The files are few and small, so they are kept in memory, compressed once. The names of all but the page contain a digest
of their content: browsers keep them forever.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("static")
PAGE = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A static file."""

    media_type: str
    plain: bytes
    compressed: bytes  # by gzip


@cache
def load_assets() -> dict[str, Asset]:
    """All static files by name; empty if this installation was made without them."""
    assets = {}
    for path in sorted(FOLDER.glob("*")):
        if media_type := _MEDIA_TYPES.get(path.suffix):
            plain = path.read_bytes()
            assets[path.name] = Asset(media_type, plain, gzip.compress(plain, 9, mtime=0))
    return assets
