"""Where the controller is, and how the embedded one is started on first use.

`PERDURE_ENDPOINT` with `PERDURE_TOKEN` (or `PERDURE_TOKEN_FILE`) name a controller that somebody runs, and
`PERDURE_FINGERPRINT` the one certificate that it may show. Without them it is the one that `perdure controller up`
brought up (`hosted`), and else this user's own, kept in `PERDURE_HOME` (default `~/.perdure`): `controller.json` says
where it listens, `token` is the key to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

START_TIMEOUT_S = 30.0
STDERR_LOG = "controller.stderr.log"


class ClientError(Exception):
    """Something that the user can mend. `where`: file, line or field; `fix`: what to do, as an imperative."""

    def __init__(self, message: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.fix}" if self.fix else text


class NoController(ClientError):
    """There is no controller to talk to, and none could be started."""


@dataclass(frozen=True)
class Endpoint:
    """`url` has no slash at its end. `home` and `pid` are those of the embedded controller, None for any other.

    `fingerprint`: SHA-256 (lower-case hexadecimal) of the one certificate to trust; None: any that an authority signed.
    """

    url: str
    token: str = field(repr=False)
    home: Path | None = None
    pid: int | None = None
    fingerprint: str | None = None


def home_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the embedded controller keeps everything; it need not exist."""
    return Path(environ.get("PERDURE_HOME") or "~/.perdure").expanduser().absolute()


def find(environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """The controller that answers now, or the one that the environment names or that was brought up on a machine of its
    own. Never starts one."""
    return _named(environ) or _hosted(home_dir(environ)) or running(home_dir(environ))


def ensure(environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The controller; the embedded one is started if it does not run. Raises `NoController`."""
    found = find(environ)
    if found:
        return found
    return _ensured(home_dir(environ))


def revived(home: Path) -> Endpoint | None:
    """The embedded controller, started anew if it crashed. None if it was stopped on purpose, or hangs.

    One that stops as asked removes `controller.json`; one that was killed leaves it. Raises `NoController`.
    """
    found = running(home)
    if found:
        return found
    pid = _pid(_record(home))
    return _ensured(home) if pid and not is_controller(pid) else None


def stderr_tail(home: Path, lines: int = 15, *, since: int = 0) -> str:
    """The last lines that the embedded controller wrote to its stderr after byte `since`; empty if there are none."""
    try:
        with open(home / STDERR_LOG, "rb") as log:
            log.seek(max(since, log.seek(0, os.SEEK_END) - 64 * 1024))
            text = log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def is_controller(pid: int) -> bool:
    """Whether the process `pid` is a live perdure controller, and not another that has got its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    is_zombie = stat.rpartition(")")[2].split()[:1] == ["Z"]
    return not is_zombie and b"perdure.controller" in command.split(b"\0")


def running(home: Path) -> Endpoint | None:
    """The embedded controller of `home`, if it answers. Raises `NoController` for a token that can not be trusted.

    Where the recorded process is dead, another user's controller may have its port: what answers must know our token.
    """
    from perdure.sdk.client import is_healthy, knows  # it loads http.client: half of the cost of a short command

    record = _record(home)
    url = str(record.get("endpoint", "")).rstrip("/")
    pin = record.get("fingerprint")
    found = Endpoint(url, "", home=home, pid=_pid(record) or None, fingerprint=pin if isinstance(pin, str) else None)
    if not url or not is_healthy(found):
        return None
    is_ours = is_controller(_pid(record))
    if not is_ours and not (home / "token").exists():
        return None
    found = replace(found, token=_own_token(home))
    return found if is_ours or knows(found) else None


def recorded_pid(home: Path) -> int | None:
    """The embedded controller's process if it lives, whether or not it answers."""
    pid = _pid(_record(home))
    return pid if is_controller(pid) else None


def _named(environ: Mapping[str, str]) -> Endpoint | None:
    url = environ.get("PERDURE_ENDPOINT", "").rstrip("/")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise NoController(f"{url!r} is no URL", where="PERDURE_ENDPOINT", fix="begin it with http:// or https://")
    fingerprint = _pinned(url, environ)
    if token := environ.get("PERDURE_TOKEN", "").strip():
        return Endpoint(url, token, fingerprint=fingerprint)
    token_file = Path(environ.get("PERDURE_TOKEN_FILE") or home_dir(environ) / "token").expanduser()
    try:
        return Endpoint(url, token_file.read_text().strip(), fingerprint=fingerprint)
    except OSError as error:
        raise NoController(
            f"there is no token for {url}: {token_file}: {error.strerror}",
            where="PERDURE_ENDPOINT",
            fix="set PERDURE_TOKEN, or PERDURE_TOKEN_FILE to a file that holds it",
        ) from error


def _hosted(home: Path) -> Endpoint | None:
    if not (home / "hosted.json").exists():
        return None  # most have none: what reads it need not be loaded
    from perdure.sdk.hosted import serving

    return serving(home)


def _pinned(url: str, environ: Mapping[str, str]) -> str | None:
    """The certificate that the environment names, if any. Raises `NoController` where a token would go unprotected."""
    from perdure.sdk.pinning import is_loopback, read_fingerprint

    given = environ.get("PERDURE_FINGERPRINT", "").strip()
    if given and not url.startswith("https://"):
        raise NoController(
            f"{url} speaks no TLS", where="PERDURE_FINGERPRINT", fix="begin PERDURE_ENDPOINT with https://"
        )
    if url.startswith("http://") and not is_loopback(url) and environ.get("PERDURE_PLAIN_HTTP") != "1":
        raise NoController(
            f"the token and the job's secrets would go to {url} as plain text",
            where="PERDURE_ENDPOINT",
            fix="begin it with https://, or set PERDURE_PLAIN_HTTP=1 where nobody can listen on the way (a VPN)",
        )
    try:
        return read_fingerprint(given) if given else None
    except ValueError as error:
        raise NoController(str(error), where="PERDURE_FINGERPRINT", fix="give 64 hexadecimal digits") from error


def _record(home: Path) -> dict[str, object]:
    try:
        record = json.loads((home / "controller.json").read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _pid(record: Mapping[str, object]) -> int:
    pid = record.get("pid")
    return pid if isinstance(pid, int) else 0


def _own_token(home: Path) -> str:
    path = home / "token"
    try:
        mode = path.stat().st_mode & 0o777
        token = path.read_text().strip()
    except OSError as error:
        raise NoController(
            f"can not read the controller's token: {error.strerror}",
            where=str(path),
            fix="for a new one, run: perdure controller stop && perdure controller start",
        ) from error
    if mode & 0o077:
        raise NoController(
            f"others may read the controller's token (mode {mode:04o})", where=str(path), fix=f"run: chmod 600 {path}"
        )
    return token


def _require_daemon() -> None:
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("sqlmodel") is None:
        raise NoController(
            "the controller is not installed here",
            fix="run: pip install 'perdure[controller]', or set PERDURE_ENDPOINT to one that runs elsewhere",
        )


def _ensured(home: Path) -> Endpoint:
    _require_daemon()
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(home):
            return running(home) or _await_known(home) or _start(home)
    except OSError as error:
        raise NoController(
            f"can not be used: {error.strerror}",
            where=str(error.filename or home),
            fix="make room and give yourself the right to write there, or set PERDURE_HOME to another folder",
        ) from error


@contextlib.contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Two terminals start one controller: the second waits here, and then finds it running."""
    import fcntl

    with open(home / "controller.start.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _await_known(home: Path) -> Endpoint | None:
    """A controller whose process lives but does not answer yet; None if there is no such process."""
    from threading import Event

    give_up_at = monotonic() + START_TIMEOUT_S
    while (pid := recorded_pid(home)) is not None:
        if found := running(home):
            return found
        if monotonic() > give_up_at:
            raise NoController(
                f"the controller (process {pid}) does not answer",
                where=str(home),
                fix=f"look into {home / STDERR_LOG}, then run: perdure controller stop && perdure controller start",
            )
        Event().wait(0.1)
    return None


def _start(home: Path) -> Endpoint:
    import subprocess

    (home / "controller.json").unlink(missing_ok=True)  # its process is dead: nothing must trust it while ours starts
    with open(home / STDERR_LOG, "ab") as log:
        began = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "perdure.controller", "serve", "--home", str(home)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    give_up_at = monotonic() + START_TIMEOUT_S
    while monotonic() < give_up_at:
        if found := running(home):
            process.returncode = 0  # it outlives us on purpose: no ResourceWarning when Popen is dropped
            return found
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise _died(home, began, f"ended with exit code {process.wait(timeout=0.05)} while it started")
    process.terminate()
    raise _died(home, began, f"did not answer within {START_TIMEOUT_S:.0f} s of its start")


def _died(home: Path, began: int, what: str) -> NoController:
    tail = stderr_tail(home, since=began) or "(it wrote nothing)"
    return NoController(f"the controller {what}; its last words:\n{tail}", fix=f"all of them: {home / STDERR_LOG}")
