"""`python -m holdfast.checkpoint ls DIR` and `verify DIR`: what is saved in a directory, and whether it is whole.

Exit code 0: all good (or nothing saved yet); 1: something is damaged; 2: wrong usage, or the directory can not be read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from holdfast.checkpoint import errors, listing

_COLUMNS = ("STEP", "PREFIX", "FILES", "SIZE", "SAVED", "STATE", "WHY")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.checkpoint", description="Look after saved checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("ls", "list steps; looks at sizes"), ("verify", "read every file and compare digests")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("dir", help="the save_dir of the checkpoints")
        command.add_argument("--prefix", help="only this checkpoint_prefix")
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.dir):
        print(f"{options.dir} is not a directory; give the save_dir of the checkpoints", file=sys.stderr)
        return 2
    try:
        found = listing.steps(options.dir, prefix=options.prefix, verify=options.command == "verify")
        strays = listing.strays(options.dir)
    except errors.CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    if found:
        _print_table([_COLUMNS, *(_row(info) for info in found)])
    else:
        print(f"no checkpoints in {options.dir}")
    if strays:
        print(f"{len(strays)} files belong to none (of other code, or of saves that never finished): {_some(strays)}")
    return 1 if any(info.state == "damaged" for info in found) else 0


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")


def _row(info: listing.StepInfo) -> tuple[str, ...]:
    saved = info.created_at[:19].replace("T", " ")
    return (str(info.step), info.prefix, str(len(info.files)), _readable(info.size), saved, info.state, info.why)


def _readable(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
