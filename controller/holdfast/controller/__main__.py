"""`python -m holdfast.controller serve --home DIR`: run a daemon in the foreground."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 stopped as asked, 2 could not start (said on standard error)."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.controller", description="The Holdfast controller.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve_command = commands.add_parser("serve", help="run the daemon until it is told to stop")
    default = os.environ.get("HOLDFAST_HOME", "~/.holdfast")
    serve_command.add_argument("--home", type=Path, default=Path(default), help="where all state is kept")
    options = parser.parse_args(arguments)

    from holdfast.controller.daemon import CannotStart, serve
    from holdfast.controller.settings import SettingsError

    try:
        serve(options.home.expanduser().resolve())
    except (CannotStart, SettingsError) as error:
        print(f"holdfast controller: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
