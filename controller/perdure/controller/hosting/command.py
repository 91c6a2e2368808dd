"""`python -m perdure.controller host up|upgrade|down`, which `perdure controller` runs, and `credentials`."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

VERBS = ("up", "upgrade", "down")


def add_arguments(host: argparse.ArgumentParser, default: Path) -> None:
    """Add the verbs of `host` and their options to the parser."""
    verbs = host.add_subparsers(dest="verb", required=True)
    for verb in VERBS:
        command = verbs.add_parser(verb)
        command.add_argument("--home", type=Path, default=default, help="where hosted.json is kept")
        if verb == "up":
            command.add_argument("--infra", required=True, help="cloud[/region[/zone]]")
            command.add_argument("--instance-type")
            command.add_argument("--disk-gib", type=int, default=20)
            command.add_argument("--role", default="perdure-controller")
            command.add_argument("--allow-cidr", default="0.0.0.0/0")
        elif verb == "down":
            command.add_argument("--delete-disk", action="store_true")


def run(options: argparse.Namespace, home: Path, report: Any) -> None:
    """Run the verb. SIGTERM interrupts it as Ctrl-C does, which leaves no machine running.

    Raises CannotHost, SettingsError, ClientError.
    """
    from perdure.controller.hosting import provision, upgrade
    from perdure.controller.runtime.clock import SystemClock

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.verb == "up":
        provision.up(home, _host_request(options), SystemClock(), report)
    elif options.verb == "upgrade":
        upgrade.upgrade(home, SystemClock(), report)
    else:
        provision.down(home, SystemClock(), report, delete_disk=options.delete_disk)


def _host_request(options: argparse.Namespace) -> Any:
    from perdure.controller.hosting.config import shares_computer
    from perdure.controller.hosting.provision import HostRequest
    from perdure.controller.hosting.retry import CannotHost
    from perdure.sdk.spec import infra
    from perdure.sdk.spec.problems import InvalidValue

    try:
        cloud, region, zone = infra.parts(options.infra)
    except InvalidValue as refused:
        raise CannotHost(f"--infra: {refused}") from refused
    if cloud is None or (region is None and not shares_computer(cloud)):
        raise CannotHost(f"--infra {options.infra}: name a cloud and its region, as in aws/us-east-1, or local")
    try:
        allowed_cidr = str(ipaddress.ip_network(options.allow_cidr))
    except ValueError as error:
        raise CannotHost(f"--allow-cidr: {error}: write an IP network, as in 192.0.2.0/24") from error
    return HostRequest(
        cloud, region, zone, options.instance_type, options.disk_gib, role=options.role, allowed_cidr=allowed_cidr
    )


def credentials(home: Path) -> dict[str, str]:
    """What clients need of a controller that has not started yet: {"version", "token", "fingerprint"}.

    The token and the certificate are created if missing, as the daemon would. `fingerprint` is "" without TLS. Raises
    CannotStart, SettingsError.
    """
    from perdure.controller.runtime.clock import SystemClock
    from perdure.controller.runtime.config.errors import CannotStart
    from perdure.controller.runtime.config.settings import read_settings
    from perdure.controller.runtime.security.keyring import KEY_FILE, Keyring
    from perdure.controller.runtime.security.tls import load_tls
    from perdure.sdk.connection.private_home import make_private

    make_private(home)
    settings = read_settings(home)
    key_file = settings.keyring_directory / KEY_FILE
    if (home / "perdure.db").exists() and not key_file.exists():
        raise CannotStart(f"{key_file} is missing, but {home} has a database: put the key back")
    tls = load_tls(settings.listen, host=settings.host, clock=SystemClock())
    token = Keyring.load_or_create(settings.keyring_directory).user_token
    return {"version": version("perdure"), "token": token, "fingerprint": tls.fingerprint if tls else ""}
