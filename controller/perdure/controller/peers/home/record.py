"""installation.json: what a home remembers of its database, to recognize one that is older, or empty.

The database is always ahead of the file: a value is written here after the transaction that stored it there. The file
survives a kill at any time; a power cut may take the last seconds of it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FILE = "installation.json"


@dataclass(frozen=True)
class HomeRecord:
    """The state of the database when this home last used it."""

    controller: str  # the id of the installation
    incarnation: str
    watermark: int  # increases while a controller runs
    at: float  # when the watermark was read, by the wall clock
    highest_job: int  # the highest id that a job was given

    @staticmethod
    def load(home: Path) -> HomeRecord | None:
        """None for a home without a record, or with one that is damaged."""
        try:
            values = json.loads((home / FILE).read_text())
            return HomeRecord(**{field.name: values[field.name] for field in fields(HomeRecord)})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, home: Path, *, sync: bool = True) -> None:
        """Replace the file atomically. `sync`: so that it also survives a power cut. Raises OSError."""
        new = home / f"{FILE}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        new.replace(home / FILE)


def highest_logged_job(home: Path) -> int:
    """The highest id of a job whose output is in this home; 0 if there is none."""
    with suppress(FileNotFoundError):
        return max((int(entry.name) for entry in os.scandir(home / "logs") if entry.name.isdecimal()), default=0)
    return 0
