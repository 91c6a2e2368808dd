"""Prepares a machine for people's scripts, where the machine belongs to the agent alone.

A distribution upgrades itself in the background: it holds dpkg's lock while `setup` installs packages, and may replace
the libraries of a GPU's driver in the middle of a job.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

OWNS_MACHINE = "PERDURE_OWNS_MACHINE"
TIMERS = ("apt-daily.timer", "apt-daily-upgrade.timer")
UPGRADES = ("apt-daily.service", "apt-daily-upgrade.service", "unattended-upgrades.service")
APT_SETTINGS = Path("/etc/apt/apt.conf.d/90perdure")
# A run that has begun is not killed: it holds the lock until it has ended, and apt waits for it.
_APT_SETTINGS = 'DPkg::Lock::Timeout "300";\nAPT::Periodic::Enable "0";\n'
_COMMANDS = (
    ("systemctl", "mask", "--now", *TIMERS),
    ("systemctl", "mask", *UPGRADES),
    ("systemctl", "stop", "--no-block", "unattended-upgrades.service"),
)
_TIMEOUT_S = 20.0


def prepare(environ: Mapping[str, str], *, log: Callable[[str], None]) -> None:
    """Stop background upgrades, once. Does nothing on a machine that others use, such as the local cloud's."""
    if environ.get(OWNS_MACHINE) != "1" or APT_SETTINGS.exists() or not APT_SETTINGS.parent.is_dir():
        return
    for command in _COMMANDS:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            problem = done.stderr.strip()[-300:] if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            log(f"background upgrades may go on: {' '.join(command)}: {problem}")
    try:
        APT_SETTINGS.write_text(_APT_SETTINGS)
        os.chmod(str(APT_SETTINGS), 0o644)
    except OSError as error:
        log(f"apt will not wait for its lock: {error}")
