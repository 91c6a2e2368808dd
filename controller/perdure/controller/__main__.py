"""The controller's process: `python -m perdure.controller serve|migrate|backup|restore|…`.

The daemon's modules are imported late: `credentials` and `host` do not need them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from perdure.controller.hosting import command
from perdure.controller.runtime.process import load_structlog, private_files
from perdure.sdk.connection.endpoint import DEFAULT_HOME, MIGRATE_TO, ClientError, expand_home
from perdure.sdk.connection.private_home import make_private


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, or stopped on request; 2 failed, with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m perdure.controller", description="The Perdure controller.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve_command = commands.add_parser("serve", help="run the daemon in the foreground until it is stopped")
    default = os.environ.get("PERDURE_HOME") or DEFAULT_HOME
    serve_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    migrate_command = commands.add_parser("migrate", help="move all state from SQLite to PostgreSQL")
    migrate_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    migrate_command.add_argument("--to", help="postgresql://user@host/database; it must be empty")
    migrate_command.add_argument("--check", action="store_true", help="only check what can be while a daemon runs")
    backup_command = commands.add_parser("backup", help="write a backup, also while the controller runs")
    backup_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    backup_command.add_argument("--to", required=True, help="a file, a folder, or a URL like s3://bucket/folder")
    backup_command.add_argument("--keep", type=int, default=0, help="how many backups to keep there; 0: all")
    backup_command.add_argument("--without-keys", action="store_true", help="leave secret.key, token and tls/ out")
    restore_command = commands.add_parser("restore", help="make a home from a backup")
    restore_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    restore_command.add_argument("--source", required=True, help="a file, a folder, or a URL like s3://bucket/folder")
    accept_command = commands.add_parser("accept-database", help="accept a database that is older than its home")
    accept_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    accept_command.add_argument(
        "--show", action="store_true", help="only print what is lost; exit code 1 if nothing is"
    )
    rotate_command = commands.add_parser("rotate-key", help="replace the key that signs tokens and seals secrets")
    rotate_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    credentials_command = commands.add_parser(
        "credentials", help="print the user token and the certificate's fingerprint"
    )
    credentials_command.add_argument("--home", type=Path, default=Path(default), help="the directory of all state")
    command.add_arguments(
        commands.add_parser("host", help="manage a controller on a machine of its own"), Path(default)
    )
    options = parser.parse_args(arguments)

    load_structlog()
    from perdure.controller.runtime.config.config_file import SettingsError
    from perdure.controller.runtime.config.errors import CannotStart

    try:
        home = expand_home(str(options.home)).resolve()
        with private_files():
            return _run_command(options, home)
    except KeyboardInterrupt:
        return 130
    except (CannotStart, SettingsError, ClientError) as error:
        with contextlib.suppress(OSError):  # standard error may be a file on a full disk
            print(f"perdure controller: {error}", file=sys.stderr)
        return 2


def _run_command(options: argparse.Namespace, home: Path) -> int:
    """Run one command, and return its exit code."""
    if options.command == "accept-database":
        return _accept_database(home, show_only=options.show)
    if options.command == "migrate":
        _migrate(home, options.to, check_only=options.check)
    elif options.command in ("backup", "restore"):
        _back_up_or_restore(home, options)
    elif options.command == "rotate-key":
        _rotate_key(home)
    elif options.command == "credentials":
        _print_credentials(home)
    elif options.command == "host":
        _host(options, home)
    else:
        serve(home)
    return 0


def serve(home: Path) -> None:
    """Run a daemon on `home` until it is stopped. Raises CannotStart or SettingsError if it cannot start."""
    from perdure.controller.runtime import failpoints
    from perdure.controller.runtime.config.config_file import SettingsError
    from perdure.controller.runtime.config.errors import CannotStart
    from perdure.controller.runtime.disk_space import disk_advice, is_disk_error

    try:
        failpoints.enable(os.environ.get(failpoints.VARIABLE, ""))
    except ValueError as error:
        raise CannotStart(str(error)) from error
    try:
        _run_daemon(home)
    except (CannotStart, SettingsError):
        raise
    except Exception as error:
        if is_disk_error(error):
            raise CannotStart(f"{str(error).splitlines()[0]}; {disk_advice(home)}") from error
        raise


def _run_daemon(home: Path) -> None:
    from perdure.controller.runtime.process import quick_imports, single_instance_lock, tune_process

    with quick_imports():
        import uvloop

        from perdure.controller.api.server.http import EventLoop
        from perdure.controller.daemon import Daemon
        from perdure.controller.peers.home import database_check
        from perdure.controller.runtime.clock import SystemClock
        from perdure.controller.runtime.config.settings import read_settings
        from perdure.controller.runtime.daemon_log import configure_logging
        from perdure.controller.store.engine.database import damage_reported, migrate_in_child

    with contextlib.ExitStack() as until_stopped:
        with _owned_by_user(home):
            make_private(home)
            settings = read_settings(home)
            tune_process()
            until_stopped.enter_context(single_instance_lock(home))
            configure_logging(home, settings.log_level)
            database_check.check_file(settings)
            migrate_in_child(settings.database_address)
            with damage_reported(settings.database_address):
                daemon = Daemon(settings, SystemClock())
        try:
            with damage_reported(settings.database_address):
                uvloop.run(daemon.run(), loop_factory=EventLoop)
        finally:
            daemon.close()


@contextlib.contextmanager
def _owned_by_user(home: Path) -> Iterator[None]:
    """Turn an OSError of the block into a CannotStart that says what to check; a disk error passes through."""
    from perdure.controller.runtime.config.errors import CannotStart
    from perdure.controller.runtime.disk_space import is_disk_error

    try:
        yield
    except OSError as error:
        if is_disk_error(error):
            raise
        raise CannotStart(f"{error}; check that {home} belongs to you and can be written") from error


def _print_credentials(home: Path) -> None:
    # An installer runs this command to check that the software can start: a broken one must fail here.
    import perdure.controller.daemon  # noqa: F401
    from perdure.controller.api.routes.sections import SECTIONS, load_module

    for name in SECTIONS:
        load_module(name)
    print(json.dumps(command.credentials(home)))


def _accept_database(home: Path, *, show_only: bool) -> int:
    from perdure.controller.peers.home.acceptance import accept_database

    return 0 if accept_database(home, print, show_only=show_only) else 1


def _back_up_or_restore(home: Path, options: argparse.Namespace) -> None:
    from perdure.controller.peers.home.backup.archive import BackupError
    from perdure.controller.peers.home.backup.create import back_up
    from perdure.controller.peers.home.backup.restore import restore
    from perdure.controller.runtime import failpoints
    from perdure.controller.runtime.config.settings import read_settings

    failpoints.enable(os.environ.get(failpoints.VARIABLE, ""))
    try:
        if options.command == "restore":
            restore(home, options.source, print)
        elif not home.is_dir():
            raise BackupError(f"{home} does not exist: there is nothing to back up")
        else:
            back_up(read_settings(home), options.to, print, keys=not options.without_keys, keep=options.keep)
    except OSError as error:
        raise BackupError(f"{error}; check that the disk has room, and that you can write there") from error


def _host(options: argparse.Namespace, home: Path) -> None:
    from perdure.controller.hosting.retry import CannotHost
    from perdure.controller.runtime.config.errors import CannotStart

    try:
        command.run(options, home, lambda text: print(text, flush=True))
    except CannotHost as error:
        raise CannotStart(str(error)) from error


def _migrate(home: Path, to: str | None, *, check_only: bool) -> None:
    """`to`: the URL from the arguments, which every user of this computer can read. One with a password comes in the
    environment instead. `check_only`: raise what a move would raise before it changes anything."""
    from perdure.controller.runtime.config.settings import read_settings
    from perdure.controller.runtime.process import single_instance_lock
    from perdure.controller.store.engine.database_url import has_password, redacted
    from perdure.controller.store.engine.move_to_postgres import (
        MigrationRefused,
        check_move,
        config_line,
        move_home,
        set_url,
    )

    if to is not None and has_password(to):
        raise MigrationRefused(
            f"--to {redacted(to)}: every user of this computer can read a command's arguments; "
            f"give a URL with a password in {MIGRATE_TO}, or keep the password in ~/.pgpass"
        )
    to = to or os.environ.get(MIGRATE_TO, "")
    if not to:
        raise MigrationRefused(f"no database is named: give --to, or set {MIGRATE_TO}")
    if not home.is_dir():
        raise MigrationRefused(f"{home} does not exist: there is nothing to move")
    make_private(home)
    settings = read_settings(home)
    if check_only:
        return check_move(settings, to)
    with single_instance_lock(home):
        move_home(settings, to, print)
        if set_url(settings, to):
            print(f"{home / 'config.yaml'} now names the new database; the old one is unchanged and no longer used")
        else:
            print(f"to use the new database, set in {home / 'config.yaml'}:\n  {config_line(redacted(to))}")


def _rotate_key(home: Path) -> None:
    from perdure.controller.peers import key_rotation, time_scale
    from perdure.controller.runtime.clock import SystemClock
    from perdure.controller.runtime.config.settings import read_settings
    from perdure.controller.runtime.process import single_instance_lock
    from perdure.controller.store.engine.database import UNAVAILABLE, open_database

    if not home.is_dir():
        raise key_rotation.CannotRotate(f"{home} does not exist: there is no key to replace")
    make_private(home)
    settings = read_settings(home)
    folder, alone = settings.keyring_directory, settings.is_single_controller
    with single_instance_lock(home):
        database = open_database(settings.database_address)
        with database.connect() as conn:
            now = time_scale.stored_time_scale(conn).from_wall(SystemClock().now())
        try:
            key_id, count = key_rotation.rotate(folder, database, now=now, is_alone=alone)
        except (*UNAVAILABLE, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise key_rotation.CannotRotate(f"{reason}; the old key is still in use: run `rotate-key` again") from error
        finally:
            database.dispose()
    print(f"the key is now {key_id}; {count} task(s) had secrets, which are sealed with it")
    if not alone:
        print(f"copy {folder / 'secret.key'} to the other controllers before you start them")


if __name__ == "__main__":
    sys.exit(main())
