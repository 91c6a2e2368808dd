"""One host process: the prepared instance that it takes over, and the command that starts it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.machine.isolation import host_environment, host_python

_MACHINE_UMASK = 0o022  # that of usual machines; the controller's own would close the job's files to its helpers
HOST_MODULE = "perdure.controller.clouds.local.host.hypervisor"


@dataclass(frozen=True)
class Prepared:
    """A complete instance directory. This process holds its lock until a host takes it over."""

    path: Path
    lock: int  # a file descriptor


def start_host(prepared: Prepared, ready_fd: int) -> subprocess.Popen[bytes]:
    """Start a process that forks the host and ends. The host reports to `ready_fd`."""
    with open(prepared.path / layout.HOST_LOG, "ab") as log:
        return subprocess.Popen(
            [*host_python(), HOST_MODULE, str(prepared.path), str(prepared.lock), str(ready_fd)],
            env=host_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(prepared.lock, ready_fd),
            start_new_session=True,
            umask=_MACHINE_UMASK,
        )
