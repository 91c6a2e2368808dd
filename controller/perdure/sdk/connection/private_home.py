"""Keeps PERDURE_HOME to its owner: it has the token, the key, and what jobs print."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from perdure.sdk.connection.endpoint import NoController

_OTHERS = 0o077
# Any of these shows that a folder is a home, and no folder of other programs that PERDURE_HOME names by mistake.
_OWN_FILES = {
    *("config.yaml", "perdure.db", "secret.key", "token", "hosted.json", "logins.json"),
    *("controller.json", "controller.log", "controller.lock", "controller.start.lock", "controller.stderr.log"),
}


def make_private(home: Path) -> None:
    """Create the home, or take everybody else's access away from an existing one and from the files in it. Idempotent.

    Subfolders keep their modes: nobody else can enter them. Raises OSError, and NoController for a folder that others
    may enter and that must not be changed, because it is another user's or holds files of other programs.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = home.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS:
        _require_own(home, status, mode)
        home.chmod(mode & ~_OTHERS)
    with os.scandir(home) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                _close_file(entry)


def _require_own(home: Path, status: os.stat_result, mode: int) -> None:
    others_may = f"other users may enter this folder (mode {mode:04o})"
    fix = f"run: chmod 700 {home}; or set PERDURE_HOME to another folder"
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        raise NoController(f"{others_may}, and it is not yours", where=str(home), fix=fix)
    names = set(os.listdir(home)) - {"lost+found"}  # which a new disk has
    if names and not names & _OWN_FILES:
        raise NoController(f"{others_may}, and it holds no controller but {min(names)}", where=str(home), fix=fix)


def _close_file(entry: os.DirEntry[str]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
        if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
            os.chmod(entry.path, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except FileNotFoundError:  # SQLite removes its -wal, for example
        return
