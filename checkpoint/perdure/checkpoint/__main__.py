"""`python -m perdure.checkpoint ls | verify | prune | watch DIR`: what is saved there, and whether it is whole.

Exit code 0: all good (or nothing saved yet); 1: something is damaged; 2: wrong usage, or the directory can not be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from perdure.checkpoint import checkpoints, errors, listing, marks, memory, retention, samples
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.keep import Keep
from perdure.checkpoint.save_dir import root_of

_COLUMNS = ("STEP", "PREFIX", "FILES", "SIZE", "SAVED", "STATE", "WHY")
_WATCH_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    if not os.path.isdir(options.dir):
        print(f"{options.dir} is not a directory; give the save_dir of the checkpoints", file=sys.stderr)
        return 2
    try:
        return int({"prune": _prune, "watch": _watch}.get(options.command, _list)(options))
    except (errors.CheckpointError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perdure.checkpoint", description="Look after saved checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "ls": "list steps; looks at sizes",
        "verify": "read the files and compare digests; marks what is damaged, and takes marks back",
        "prune": "remove what a rule does not keep, once what it keeps was read and is whole; never what is damaged",
        "watch": "print a line whenever the state of a step changes, until interrupted",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("dir", help="the save_dir of the checkpoints")
        command.add_argument("--prefix", help="only this checkpoint_prefix")
        if name in ("ls", "verify"):
            command.add_argument("--json", action="store_true", help="one JSON object per line")
        if name in ("verify", "prune"):
            how = "every byte (the default), a sample of each file, or sizes alone"
            command.add_argument("--how", choices=samples.MODES, default=samples.FULL, help=how)
        if name == "prune":
            command.add_argument("--last", type=int, required=True, metavar="N", help="keep the newest N")
            command.add_argument("--every-steps", type=int, metavar="K", help="keep multiples of K")
            command.add_argument("--every-minutes", type=float, metavar="T", help="keep one of every T minutes")
            command.add_argument("--best", type=int, default=0, metavar="N", help="keep the best N by --metric")
            command.add_argument("--metric", help="a name given to save(…, metrics={…})")
            command.add_argument("--mode", choices=("min", "max"), default="min", help="which is best (default: min)")
            command.add_argument("--dry-run", action="store_true", help="only say what would go")
    return parser


def _list(options: argparse.Namespace) -> int:
    verify = options.how if options.command == "verify" else samples.SIZE
    found = listing.steps(options.dir, prefix=options.prefix, verify=verify)
    strays = listing.strays(options.dir)
    if options.json:
        for info in found:
            print(json.dumps(asdict(info)))
    elif found:
        _print_table([_COLUMNS, *(_row(info) for info in found)])
    else:
        print(f"no checkpoints in {options.dir}")
    if strays and not options.json:
        print(f"{len(strays)} files belong to none (of other code, or of saves that never finished): {_some(strays)}")
    return 1 if any(info.state == "damaged" for info in found) else 0


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
    prefixes = sorted({info.prefix for info in listing.steps(root, prefix=options.prefix)})
    for prefix in prefixes:
        known = memory.of(root)
        surplus = _surplus(root, prefix, keep, options.how)
        removed = [checkpoint.step for checkpoint in surplus]
        if surplus and not options.dry_run:
            removed = retention.apply(root, prefix, just_saved=None, keep=keep, memory=known)
        for step in removed:
            print(f"{'would remove' if options.dry_run else 'removed'} {prefix} step {step}")
    return 0


def _surplus(root: str, prefix: str, keep: Keep, how: str) -> Sequence[Checkpoint]:
    """What can go, now that each step that stays has been looked at: a damaged one among them has another stay."""
    looked_at: set[int] = set()
    while True:
        surplus = retention.find_surplus(root, prefix, just_saved=None, keep=keep, memory=memory.of(root))
        going = {checkpoint.step for checkpoint in surplus}
        found = checkpoints.newest_first(root, prefix)
        staying = [one for one in found if one.step not in going | looked_at] if going else []
        if not [one for one in staying if marks.fault(one, believe=False, verify=how)]:
            return surplus
        looked_at.update(one.step for one in staying)


def _watch(options: argparse.Namespace) -> int:
    """Does not read files, which would postpone their upload; manifests are read once."""
    before: dict[tuple[str, int], str] = {}
    while True:
        now = {(one.prefix, one.step): one for one in listing.steps(options.dir, prefix=options.prefix)}
        for key, info in sorted(now.items()):
            if before.get(key) != info.state:
                print("  ".join((time.strftime("%H:%M:%S"), *_row(info))).rstrip(), flush=True)
        for prefix, step in sorted(before.keys() - now.keys()):
            print(f"{time.strftime('%H:%M:%S')}  {step}  {prefix}  removed", flush=True)
        before = {key: info.state for key, info in now.items()}
        time.sleep(_WATCH_S)


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
