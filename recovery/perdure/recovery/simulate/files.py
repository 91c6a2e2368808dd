"""Traces on disk: the only module of the simulator that reads files."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from perdure.recovery.simulate.traces import BadTrace, ZoneTrace, parse

_SUFFIXES = (".json", ".json.gz")
_WHOLE = tuple(f"full{suffix}" for suffix in _SUFFIXES)


def load(
    paths: Iterable[str | Path],
    *,
    unavailable_is: int,
    spot_price: float | None = None,
    on_demand_price: float | None = None,
) -> tuple[ZoneTrace, ...]:
    """The zones in `paths`: files, or folders of *.json and *.json.gz, which are read in the order of their names.

    A folder with a `full.json` is the recording of one zone, named after the folder; so is each of its subfolders.

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
    counts = Counter(zone.zone for zone in zones)
    duplicates = [zone for zone, count in counts.items() if count > 1]
    if duplicates:
        raise BadTrace(f"several traces are of one zone, {duplicates[0]}: name the files of one data set only")
    return tuple(zones)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
    # Some collections have a folder per zone, with its whole recording in one file beside pieces of it.
    files = files or sorted(file for name in _WHOLE for file in path.glob(f"*/{name}"))
    whole = [file for file in files if file.name in _WHOLE]
    files = whole or files
    if not files:
        raise BadTrace(f"{path} contains no trace: no file there ends in {' or '.join(_SUFFIXES)}")
    return files


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadTrace(f"{file} cannot be read: {reason}") from None
