"""`python -m perdure.checkpoint ls | verify | prune | watch | adopt DIR`: what is saved there, and whether it is whole.

Exit code 0: no damage (or nothing saved yet); 1: something is damaged; 2: wrong usage, or the directory cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from perdure.checkpoint import errors
from perdure.checkpoint.format import sampling
from perdure.checkpoint.format.save_dir import root_of
from perdure.checkpoint.load import listing
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.load.verify import verify_and_mark
from perdure.checkpoint.save import adopt
from perdure.checkpoint.save.retention import surplus_removal
from perdure.checkpoint.save.retention.keep_rule import Keep
from perdure.checkpoint.save.save_directory import SaveDirectory

_COLUMNS = ("STEP", "PREFIX", "FILES", "SIZE", "SAVED", "STATE", "REASON")
_WATCH_INTERVAL_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    if not os.path.isdir(options.dir):
        print(f"{options.dir} is not a directory; pass the save_dir of the checkpoints", file=sys.stderr)
        return 2
    try:
        return int({"prune": _prune, "watch": _watch, "adopt": _adopt}.get(options.command, _list)(options))
    except (errors.CheckpointError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perdure.checkpoint", description="Inspect and prune saved checkpoints."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "ls": "list steps; compares sizes only",
        "verify": "compare files with their digests; marks damaged checkpoints and unmarks whole ones",
        "prune": "verify what a rule keeps, then remove the rest; damaged checkpoints are never removed",
        "adopt": "commit checkpoints that have no manifest, as they are now: after `.perdure` was lost, or to go on "
        "with a run that was saved without this library",
        "watch": "print a line whenever the state of a step changes, until interrupted",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("dir", help="the save_dir of the checkpoints")
        command.add_argument("--prefix", help="only this checkpoint_prefix")
        if name in ("ls", "verify"):
            command.add_argument("--json", action="store_true", help="one JSON object per line")
        if name in ("verify", "prune"):
            modes = "compare every byte (the default), a sample of each file, or only sizes"
            command.add_argument("--verify", choices=sampling.MODES, default=sampling.FULL, help=modes)
        if name == "prune":
            command.add_argument("--last", type=int, required=True, metavar="N", help="keep the newest N")
            command.add_argument("--every-steps", type=int, metavar="K", help="keep multiples of K")
            command.add_argument("--every-minutes", type=float, metavar="T", help="keep one of every T minutes")
            command.add_argument("--best", type=int, default=0, metavar="N", help="keep the best N by --metric")
            command.add_argument("--metric", help="a name passed to save(…, metrics={…})")
            command.add_argument("--mode", choices=("min", "max"), default="min", help="which is best (default: min)")
            command.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    return parser


def _list(options: argparse.Namespace) -> int:
    verify = options.verify if options.command == "verify" else sampling.SIZE
    steps = listing.steps(options.dir, prefix=options.prefix, verify=verify)
    unlisted = listing.unlisted_files(options.dir)
    if options.json:
        for info in steps:
            print(json.dumps(asdict(info)))
    elif steps:
        _print_table([_COLUMNS, *(_row(info) for info in steps)])
    else:
        print(f"no checkpoints in {options.dir}")
    if unlisted and not options.json:
        print(f"{len(unlisted)} files are in no checkpoint (other code, or unfinished saves): {_abbreviate(unlisted)}")
    return 1 if any(info.state == "damaged" for info in steps) else 0


def _prune(options: argparse.Namespace) -> int:
    keep = Keep(
        options.last,
        every_steps=options.every_steps,
        every_minutes=options.every_minutes,
        best=options.best,
        metric=options.metric,
        mode=options.mode,
    )
    root = root_of(options.dir)
    for prefix in sorted({info.prefix for info in listing.steps(root, prefix=options.prefix)}):
        directory = SaveDirectory(root)
        for function in surplus_removal.functions_of(directory, prefix):
            surplus = _find_surplus(directory, prefix, keep, options.verify, function)
            removed = [checkpoint.step for checkpoint in surplus]
            if surplus and not options.dry_run:
                removed = surplus_removal.remove_surplus(
                    directory, prefix, just_saved=None, keep=keep, function=function
                )
            for step in removed:
                print(f"{'would remove' if options.dry_run else 'removed'} {prefix} step {step}")
    return 0


def _find_surplus(
    directory: SaveDirectory, prefix: str, keep: Keep, verify: str, function: str
) -> Sequence[Checkpoint]:
    """The checkpoints to remove, once each one that stays is verified. If one of those is damaged, another one stays
    in its place."""
    verified: set[int] = set()
    while True:
        surplus = surplus_removal.find_surplus(directory, prefix, keep=keep, function=function)
        going = {checkpoint.step for checkpoint in surplus}
        kept = [one for one in directory.checkpoints(prefix) if one.step not in going | verified] if going else []
        if not [one for one in kept if verify_and_mark(one, trust_marks=False, verify=verify)]:
            return surplus
        verified.update(one.step for one in kept)


def _adopt(options: argparse.Namespace) -> int:
    prefix = options.prefix or "checkpoint"
    steps = adopt.adopt(SaveDirectory.open(root_of(options.dir)), prefix)
    for step in steps:
        print(f"adopted {prefix} step {step}")
    if not steps:
        print(f"no checkpoints without a manifest under the prefix {prefix!r} in {options.dir}")
    return 0


def _watch(options: argparse.Namespace) -> int:
    """Print changes until interrupted. Files are not read, since that would postpone their upload."""
    before: dict[tuple[str, int], str] = {}
    while True:
        now = {(one.prefix, one.step): one for one in listing.steps(options.dir, prefix=options.prefix)}
        for key, info in sorted(now.items()):
            if before.get(key) != info.state:
                print("  ".join((time.strftime("%H:%M:%S"), *_row(info))).rstrip(), flush=True)
        for prefix, step in sorted(before.keys() - now.keys()):
            print(f"{time.strftime('%H:%M:%S')}  {step}  {prefix}  removed", flush=True)
        before = {key: info.state for key, info in now.items()}
        time.sleep(_WATCH_INTERVAL_S)


def _abbreviate(paths: Sequence[str]) -> str:
    return ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")


def _row(info: listing.StepInfo) -> tuple[str, ...]:
    saved = info.created_at[:19].replace("T", " ")
    return (str(info.step), info.prefix, str(len(info.files)), _readable(info.size), saved, info.state, info.reason)


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
