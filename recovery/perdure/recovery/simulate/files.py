"""Traces on disk: the one place of the simulator that reads files."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from perdure.recovery.simulate.traces import BadTrace, ZoneTrace, parse

_SUFFIXES = (".json", ".json.gz")


def load(
    paths: Iterable[str | Path],
    *,
    unavailable_is: int,
    spot_price: float | None = None,
    on_demand_price: float | None = None,
) -> tuple[ZoneTrace, ...]:
    """The zones in `paths`: files, or folders whose *.json and *.json.gz are all taken. In the order of their names.

    For the other arguments, see `traces.parse`. Raises `BadTrace`.
    """
    files = [file for path in paths for file in _files(Path(path))]
    zones = [
        parse(
            _text(file),
            name=str(file),
            unavailable_is=unavailable_is,
            spot_price=spot_price,
            on_demand_price=on_demand_price,
        )
        for file in dict.fromkeys(files)
    ]
    named: dict[str, int] = {}
    for zone in zones:
        named[zone.zone] = named.get(zone.zone, 0) + 1
    twice = [zone for zone, times in named.items() if times > 1]
    if twice:
        raise BadTrace(f"several traces are of one zone, {twice[0]}: name the files of one data set")
    return tuple(zones)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
    if not found:
        raise BadTrace(f"{path} holds no trace: no file there ends in {' or '.join(_SUFFIXES)}")
    return found


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadTrace(f"{file} can not be read: {reason}") from None
