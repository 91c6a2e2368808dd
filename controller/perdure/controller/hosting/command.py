"""`python -m perdure.controller host up|upgrade|down`: what `perdure controller` runs for them."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import sys
from pathlib import Path
from typing import Any

WORDS = ("up", "upgrade", "down")


def add(host: argparse.ArgumentParser, default: Path) -> None:
    """The words after `host`, and what each may be told."""
    words = host.add_subparsers(dest="word", required=True)
    for word in WORDS:
        command = words.add_parser(word)
        command.add_argument("--home", type=Path, default=default, help="where hosted.json is kept")
        if word == "up":
            command.add_argument("--infra", required=True, help="cloud[/region[/zone]]")
            command.add_argument("--instance-type")
            command.add_argument("--disk-gib", type=int, default=20)
            command.add_argument("--role", default="perdure-controller")
            command.add_argument("--callers", default="0.0.0.0/0")
        elif word == "down":
            command.add_argument("--delete-disk", action="store_true")


def run(options: argparse.Namespace, home: Path, say: Any) -> None:
    """Raises CannotHost, SettingsError, ClientError. SIGTERM ends it as Ctrl-C does: nothing is left running."""
    from perdure.controller.clock import SystemClock
    from perdure.controller.hosting import bringing, upgrading

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.word == "up":
        bringing.up(home, _wish(options), SystemClock(), say)
    elif options.word == "upgrade":
        upgrading.upgrade(home, SystemClock(), say)
    else:
        bringing.down(home, SystemClock(), say, with_disk=options.delete_disk)


def _wish(options: argparse.Namespace) -> Any:
    from perdure.controller.hosting.asking import CannotHost
    from perdure.controller.hosting.bringing import Wish
    from perdure.sdk import infra
    from perdure.sdk.problems import Refused

    try:
        cloud, region, zone = infra.parts(options.infra)
    except Refused as refused:
        raise CannotHost(f"--infra: {refused}") from refused
    if cloud is None or (region is None and cloud != "local"):
        raise CannotHost(f"--infra {options.infra}: name a cloud and its region, as in aws/us-east-1, or local")
    try:
        callers = str(ipaddress.ip_network(options.callers))
    except ValueError as error:
        raise CannotHost(f"--callers: {error}: write an IP network, as in 192.0.2.0/24") from error
    return Wish(cloud, region, zone, options.instance_type, options.disk_gib, role=options.role, callers=callers)
