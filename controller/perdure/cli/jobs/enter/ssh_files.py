"""The files with which ssh finds nodes, in PERDURE_HOME/ssh: a key pair, known hosts, and host entries.

The user's own `~/.ssh/config` gets one `Include` line, and is never changed otherwise.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure.sdk.connection.endpoint import ClientError

DEFAULT_USER = "root"
_MAX_EXCEPTIONS = 100  # entries of nodes that have another user
_EXCEPTION = re.compile(r"^Host (\S+) \1-worker\*\n    User (\S+)$", re.MULTILINE)
_HOSTS = re.compile(r"^Host job-\*(.*)$", re.MULTILINE)
_JOB = re.compile(r"job-[0-9]+")
# What may stand in ssh's files: more would be another line, or an option of ssh.
_HOST = re.compile(r"[a-zA-Z](?:[-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
_USER = re.compile(r"[a-zA-Z0-9_][-_.+@a-zA-Z0-9]*\$?")
_HOST_KEY = re.compile(r"ssh-ed25519 [a-zA-Z0-9+/]+={0,2}")
_HEADER = "# Written by perdure, which replaces this file.\n"


class SshUnavailable(ClientError):
    """This computer lacks an ssh client, or its files cannot be written."""


class InvalidHost(ClientError):
    """The controller sent a name, a user or a key that ssh's files cannot hold."""


@dataclass(frozen=True)
class SshFolder:
    """The folder `ssh` of a home."""

    home: Path

    @property
    def path(self) -> Path:
        return self.home / "ssh"

    @property
    def config(self) -> Path:
        return self.path / "config"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def private_key(self) -> Path:
        return self.path / "id_ed25519"

    def public_key(self) -> str:
        """The public key, without its comment. The pair is made on first use. Raises SshUnavailable."""
        with self._locked():
            public = self.private_key.with_suffix(".pub")
            if not (self.private_key.exists() and public.exists()):
                self._make_key()
            return " ".join(public.read_text().split()[:2])

    def remember(self, host: str, host_key: str, user: str) -> None:
        """Record the host key and the user of the nodes of a job (`job-17`) or a cluster.

        Raises SshUnavailable, and InvalidHost: ssh would run what a line break smuggles into its configuration.
        """
        _require(_HOST, host, "name")
        _require(_HOST_KEY, host_key, "host key")
        _require(_USER, user, "user")
        with self._locked():
            line = f"{host},{host}-worker* {host_key}"
            lines = _read(self.known_hosts).splitlines()
            others = [one for one in lines if not one.startswith(f"{host},")]
            if line not in lines or len(others) + 1 < len(lines):
                _replace(self.known_hosts, "\n".join([*others, line]) + "\n")
            users, clusters = self._entries()
            users.pop(host, None)
            if user != DEFAULT_USER:
                users[host] = user
            if not _JOB.fullmatch(host) and host not in clusters:
                clusters.append(host)
            self._write_config(users, clusters)

    def list_clusters(self, names: Collection[str], *, is_first: bool = False) -> None:
        """Have ssh know exactly these clusters, if it knows the nodes of this home at all.

        `is_first`: from now on, it knows them. Raises SshUnavailable and InvalidHost.
        """
        if not self.config.exists() and not is_first:
            return
        for name in names:
            _require(_HOST, name, "name")
        with self._locked():
            users, known = self._entries()
            for gone in set(known) - set(names):
                users.pop(gone, None)
            self._write_config(users, names)

    def include_in(self, user_config: Path) -> bool:
        """Add the `Include` line to the user's configuration, as its first line. Returns whether it was missing.

        Raises SshUnavailable.
        """
        line = f"Include {_quoted(self.config)}"
        target = user_config.resolve()
        with self._locked(), _translate_os_errors(user_config):
            text = _read(target)
            if line in text.splitlines():
                return False
            user_config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
            _replace(target, f"{line}\n\n{text}" if text else f"{line}\n", mode=mode)
        return True

    def _entries(self) -> tuple[dict[str, str], list[str]]:
        """The users other than root, by host, and the clusters of the configuration."""
        text = _read(self.config)
        hosts = _HOSTS.search(text)
        names = hosts[1].split() if hosts else []
        return dict(_EXCEPTION.findall(text)), [name for name in names if not name.endswith("*")]

    def _write_config(self, users: dict[str, str], clusters: Collection[str]) -> None:
        text = self._config_text(dict(list(users.items())[-_MAX_EXCEPTIONS:]), clusters)
        if text != _read(self.config):
            _replace(self.config, text)

    def _config_text(self, users: dict[str, str], clusters: Collection[str]) -> str:
        command = shlex.join(
            ["env", f"PERDURE_HOME={self.home}", sys.executable, "-m", "perdure.cli", "ssh-proxy"]
        ).replace("%", "%%")
        exceptions = "".join(f"Host {host} {host}-worker*\n    User {user}\n" for host, user in users.items())
        hosts = "".join(f" {name} {name}-worker*" for name in clusters)
        return f"""{_HEADER}{exceptions}Host job-*{hosts}
    User {DEFAULT_USER}
    ProxyCommand {command} %n %r
    IdentityFile {_quoted(self.private_key)}
    IdentitiesOnly yes
    HostKeyAlgorithms ssh-ed25519
    StrictHostKeyChecking yes
    UserKnownHostsFile {_quoted(self.known_hosts)}
    GlobalKnownHostsFile /dev/null
    CheckHostIP no
    UpdateHostKeys no
"""

    def _make_key(self) -> None:
        program = shutil.which("ssh-keygen")
        if program is None:
            raise SshUnavailable("ssh-keygen is not installed here", fix="install OpenSSH's client (openssh-client)")
        with tempfile.TemporaryDirectory(dir=self.path) as folder:
            new = Path(folder, "key")
            made = subprocess.run(
                [program, "-q", "-t", "ed25519", "-N", "", "-C", "perdure", "-f", str(new)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if made.returncode != 0:
                raise SshUnavailable(f"ssh-keygen failed: {made.stderr.strip()}", where=str(self.private_key))
            os.replace(new.with_suffix(".pub"), self.private_key.with_suffix(".pub"))
            os.replace(new, self.private_key)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made if it is missing: several ssh processes may start at once."""
        with _translate_os_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self.path / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield


def _require(pattern: re.Pattern[str], value: str, kind: str) -> None:
    if not pattern.fullmatch(value):
        raise InvalidHost(
            f"the controller sent the {kind} {value[:80]!r} of a machine, which ssh cannot use; nothing was written",
            fix="check that the controller you are connected to is yours",
        )


def _replace(path: Path, text: str, *, mode: int = 0o600) -> None:
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        os.chmod(new, mode)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def _read(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _quoted(path: Path) -> str:
    return f'"{path}"'.replace("%", "%%")


@contextlib.contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SshUnavailable(f"{error.strerror or error}", where=str(error.filename or path)) from error
