"""Starts machines for a controller that runs in a local machine itself.

A host that is started inside the controller's machine would end with that machine, and its jobs with it. So the
launcher sends a request to a process outside: the name of the new machine's directory and two descriptors, its lock and
its ready pipe. The host of the controller's machine cannot start other hosts, since its children belong to the
machine's PID namespace. So it starts this module first, which serves requests as long as that host lives.
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
from perdure.controller.clouds.local.host.host_process import Prepared, start_host
from perdure.controller.clouds.local.machine.isolation import host_environment, host_python

_MAX_NAME_BYTES = 255  # of a file's name


def request_spawn(directory: str, path: Path, lock: int, ready_fd: int) -> None:
    """Request the start of the host for the machine at `path`. `directory`: of this machine. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            link.connect(f"/proc/self/fd/{folder}/{layout.SPAWN_SOCKET}")  # a socket's path has at most 107 bytes
        finally:
            os.close(folder)
        socket.send_fds(link, [path.name.encode()], [lock, ready_fd])


def start_spawner() -> None:
    """Start this module. Called by the host in its directory, before its machine starts."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(layout.SPAWN_SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(layout.SPAWN_SOCKET)
        listener.listen(64)
        subprocess.Popen(
            [*host_python(), __name__, str(listener.fileno()), str(os.getpid())],
            env=host_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
        )


def serve(listener: socket.socket, host: int) -> None:
    """Serve requests until the process `host` (a pidfd) has ended."""
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while not any(fd == host for fd, _ in poll.poll()):
        with contextlib.suppress(OSError):
            _serve_request(listener)


def _serve_request(listener: socket.socket) -> None:
    """Start the host of a machine whose directory lies next to that of the controller's machine."""
    link, _ = listener.accept()
    with link:
        link.settimeout(1.0)
        message, descriptors, _, _ = socket.recv_fds(link, _MAX_NAME_BYTES, 2)
    try:
        name = message.decode(errors="replace")
        path = Path.cwd().parent / name
        if len(descriptors) == 2 and name not in ("", ".", "..") and "/" not in name and path.is_dir():
            start_host(Prepared(path, descriptors[0]), descriptors[1]).wait()
    finally:
        for fd in descriptors:
            os.close(fd)


def main() -> None:
    listener, host = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(host)
        if os.getppid() == host:  # otherwise it has ended, and its process id may be reused
            serve(listener, handle)


if __name__ == "__main__":
    main()
