"""Sessions of OpenSSH's server: one `sshd -i` per connection, on a socket pair instead of a port.

Everything that it needs is in a folder of the session: the job's host key, the one public key that may log in, and the
script that gives commands the environment of the job.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.agent.link.stream_copy import send_all, write_all
from perdure.agent.tunnel.launcher import launch
from perdure.agent.tunnel.session import Session, SessionContext, SessionRefused, change_folder
from perdure.agent.workload.environment import DEFAULT_PATH
from perdure.agent.workload.tools.login import LOGIN

_USE_EXEC = "use `perdure jobs exec -t ID -- bash`"
_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
_PRIVILEGE_SEPARATION = Path("/run/sshd")
_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
AuthenticationMethods publickey
PermitRootLogin prohibit-password
AllowUsers {user}
UsePAM {use_pam}
StrictModes no
PidFile none
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
AllowTcpForwarding yes
AllowAgentForwarding yes
PermitTunnel no
PermitUserRC no
ClientAliveInterval 30
Subsystem sftp {sftp}
ForceCommand exec /bin/sh {script}
"""
# Interactive shells begin in the job's folder; commands, scp and rsync in the home folder, as with any ssh server.
_SCRIPT = """\
{exports}
cd "$HOME" 2>/dev/null
case $SSH_ORIGINAL_COMMAND in {sftp}*) exec $SSH_ORIGINAL_COMMAND ;; esac
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec {enter} bash -c {command}; fi
{change_folder}
exec {enter} bash -c {shell}
"""


def serve_ssh(session: Session, request: Mapping[str, Any], context: SessionContext) -> None:
    """Serve one connection of an ssh client. Raises SessionRefused, Disconnected."""
    program = _find_sshd()
    folder = context.directory / str(request["id"])
    ours, theirs = socket.socketpair()
    session.at_end(ours.close)
    try:
        folder.mkdir(mode=0o700, parents=True)
        session.at_end(lambda: shutil.rmtree(folder, ignore_errors=True))
        _write_files(folder, request, context)
        with theirs, open(folder / "errors", "wb") as errors:
            process = launch(
                [program, "-i", "-e", "-f", str(folder / "config")],
                env={"PATH": DEFAULT_PATH},
                folders=("/",),
                library=context.library,
                stdin=theirs,
                stdout=theirs,
                stderr=errors,
            )
        session.owns(process)
    except OSError as error:
        raise SessionRefused(f"sshd cannot be started on this machine: {error}", _USE_EXEC) from None
    ours.setblocking(False)
    session.accept()

    def on_data(data: bytes) -> None:
        if not write_all(session.ws, ours.fileno(), data):
            _end_input(ours)

    session.receive(on_data, lambda message: _end_input(ours) if message.get("type") == "eof" else None)
    send_all(session.ws, {ours.fileno(): b""}, wake=session.wake)
    if not session.must_end and _failed(process) and (reason := _last_line(folder / "errors")):
        raise SessionRefused(f"sshd failed on this machine: {reason}", _USE_EXEC)
    session.finish(session.await_process())


def _find_sshd() -> str:
    """The path of the server, which starts itself again and needs it. Raises SessionRefused."""
    if _read("/proc/self/setgroups").strip() == "deny":
        raise SessionRefused(
            "sshd cannot run on this machine: it is simulated without root, and has a single user", _USE_EXEC
        )
    program = shutil.which("sshd", path=f"/usr/sbin:/sbin:/usr/local/sbin:{os.environ.get('PATH') or DEFAULT_PATH}")
    if program is None:
        raise SessionRefused(
            "openssh-server is not installed on this machine",
            f"install it in `setup` (apt-get install -y openssh-server), or {_USE_EXEC}",
        )
    if os.getuid() == 0:
        with suppress(OSError):  # a system makes it when its own server starts, which may be never
            _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    return program


def _write_files(folder: Path, request: Mapping[str, Any], context: SessionContext) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    script = folder / "session.sh"
    enter = context.enter()
    sftp = next(filter(os.path.exists, _SFTP_SERVERS), _SFTP_SERVERS[0])
    files = {
        "host_key": str(request["host_key"]),
        "authorized_keys": str(request["public_key"]) + "\n",
        "config": _CONFIG.format(
            folder=folder,
            user=user,
            use_pam="yes" if _is_locked(user) else "no",
            sftp=sftp,
            script=shlex.quote(str(script)),
        ),
        script.name: _SCRIPT.format(
            sftp=sftp,
            enter=shlex.join(enter),
            exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in _variables(context).items()),
            command=shlex.quote(f'{LOGIN}eval "$SSH_ORIGINAL_COMMAND"'),
            change_folder=change_folder(context.folders),
            shell=shlex.quote(f"{LOGIN}{change_folder(context.folders) if enter else ''}exec bash -i"),
        ),
    }
    for name, text in files.items():
        descriptor = os.open(str(folder / name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def _variables(context: SessionContext) -> dict[str, str]:
    """The variables that a shell can export."""
    return {
        name: value
        for name, value in context.env().items()
        if name.isidentifier() and name.isascii() and not name.startswith("SSH_")
    }


def _is_locked(user: str) -> bool:
    """Whether the account has no password that could ever match: without PAM, sshd rejects every login to it."""
    for line in _read("/etc/shadow").splitlines():
        name, _, rest = line.partition(":")
        if name == user:
            return rest.startswith("!")
    return False


def _end_input(link: socket.socket) -> None:
    with suppress(OSError):  # sshd has ended
        link.shutdown(socket.SHUT_WR)


def _failed(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(timeout=1.0) != 0
    except subprocess.TimeoutExpired:
        return False


def _last_line(path: Path) -> str:
    lines = _read(str(path)).strip().splitlines()
    return lines[-1][:300] if lines else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
