"""How a controller that runs in a machine has other machines started beside its own, not within it.

A host that was started from inside would end with the controller's machine, and its jobs with it. So the launcher asks
outside: one message with the name of the new machine's directory and two descriptors, its lock and where it answers.
The host of the controller's machine can not do it either, since its children are in the machine's PID namespace. It
starts this module first, which listens as long as that host lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from perdure.controller.clouds.local import layout

_LONGEST = 255  # of a file's name


def ask(directory: str, path: Path, lock: int, say: int) -> None:
    """Have the host of the machine in `directory` start that of the machine at `path`. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            link.connect(f"/proc/self/fd/{folder}/{layout.LAUNCHES}")  # a socket's path may be 107 bytes long at most
        finally:
            os.close(folder)
        socket.send_fds(link, [path.name.encode()], [lock, say])


def begin() -> None:
    """The host's side, in its directory, before its machine starts: it can be asked when this returns."""
    from perdure.controller.clouds.local.isolation import host_environment, host_python

    with contextlib.suppress(FileNotFoundError):
        os.remove(layout.LAUNCHES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as others:
        others.bind(layout.LAUNCHES)
        others.listen(64)
        subprocess.Popen(
            [*host_python(), __name__, str(others.fileno()), str(os.getpid())],
            env=host_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=(others.fileno(),),
            start_new_session=True,
        )


def serve(others: socket.socket, host: int) -> None:
    """Start what is asked for until the process `host` has ended."""
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(others, select.POLLIN)
    while not any(fd == host for fd, _ in poll.poll()):
        with contextlib.suppress(OSError):
            _answer(others)


def _answer(others: socket.socket) -> None:
    """Start the host of a machine whose directory lies beside the controller's machine's."""
    from perdure.controller.clouds.local.launcher import Prepared, start_host

    link, _ = others.accept()
    with link:
        link.settimeout(1.0)
        said, given, _, _ = socket.recv_fds(link, _LONGEST, 2)
    try:
        name = said.decode(errors="replace")
        path = Path.cwd().parent / name
        if len(given) == 2 and name not in ("", ".", "..") and "/" not in name and path.is_dir():
            start_host(Prepared(path, given[0]), given[1]).wait()
    finally:
        for fd in given:
            os.close(fd)


def main() -> None:
    others, host = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(host)
        if os.getppid() == host:  # or it has ended, and its number is another's
            serve(others, handle)


if __name__ == "__main__":
    main()
