"""`python -m perdure.controller serve --home DIR`: run a daemon in the foreground.

`migrate`: see `moving`; `host`: see `hosting`; `credentials`: what callers of a daemon that is to start need.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from perdure.controller.hosting import command
from perdure.controller.sparing import load_structlog


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, or stopped as asked; 2 could not start, or could not be done (said on standard error)."""
    parser = argparse.ArgumentParser(prog="python -m perdure.controller", description="The Perdure controller.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve_command = commands.add_parser("serve", help="run the daemon until it is told to stop")
    default = os.environ.get("PERDURE_HOME", "~/.perdure")
    serve_command.add_argument("--home", type=Path, default=Path(default), help="where all state is kept")
    migrate_command = commands.add_parser("migrate", help="move everything from SQLite to PostgreSQL")
    migrate_command.add_argument("--home", type=Path, default=Path(default), help="where all state is kept")
    migrate_command.add_argument("--to", required=True, help="postgresql://user@host/database, an empty one")
    credentials_command = commands.add_parser("credentials", help="print the token and the certificate's fingerprint")
    credentials_command.add_argument("--home", type=Path, default=Path(default), help="where all state is kept")
    command.add(commands.add_parser("host", help="a controller on a machine of its own"), Path(default))
    options = parser.parse_args(arguments)

    load_structlog()
    from perdure.controller.daemon import CannotStart, serve
    from perdure.controller.settings import SettingsError
    from perdure.sdk.endpoint import ClientError

    home = options.home.expanduser().resolve()
    try:
        if options.command == "migrate":
            _migrate(home, options.to)
        elif options.command == "credentials":
            _print_credentials(home)
        elif options.command == "host":
            _host(options, home)
        else:
            serve(home)
    except KeyboardInterrupt:
        return 130
    except (CannotStart, SettingsError, ClientError) as error:
        print(f"perdure controller: {error}", file=sys.stderr)
        return 2
    return 0


def _print_credentials(home: Path) -> None:
    from perdure.controller.hosting.credentials import credentials

    print(json.dumps(credentials(home)))


def _host(options: argparse.Namespace, home: Path) -> None:
    from perdure.controller.daemon import CannotStart
    from perdure.controller.hosting.asking import CannotHost

    try:
        command.run(options, home, lambda text: print(text, flush=True))
    except CannotHost as error:
        raise CannotStart(str(error)) from error


def _migrate(home: Path, to: str) -> None:
    from perdure.controller.daemon import only_one
    from perdure.controller.moving import CannotMove, config_line, move, set_url
    from perdure.controller.settings import read_settings

    if not home.is_dir():
        raise CannotMove(f"{home} does not exist: there is nothing to move")
    settings = read_settings(home)
    with only_one(home):
        move(settings, to, print)
        if set_url(settings, to):
            print(f"{home / 'config.yaml'} names the new database; the old one stays as it is, and is used no more")
        else:
            print(f"now set, in {home / 'config.yaml'}:\n  {config_line(to)}")


if __name__ == "__main__":
    sys.exit(main())
