"""What a caller needs to know of a controller that has not started yet: its token and its certificate's fingerprint."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from perdure.controller.clock import SystemClock
from perdure.controller.daemon import CannotStart
from perdure.controller.keyring import KEY_FILE, Keyring
from perdure.controller.settings import read_settings
from perdure.controller.tls import tls_of


def credentials(home: Path) -> dict[str, str]:
    """Made if they are not there yet, as the daemon would. Raises CannotStart, SettingsError."""
    settings = read_settings(home)
    if (home / "perdure.db").exists() and not (settings.keyring / KEY_FILE).exists():
        raise CannotStart(f"{settings.keyring / KEY_FILE} is missing, and {home} has a database: put it back")
    tls = tls_of(settings.listening, host=settings.host, clock=SystemClock())
    token = Keyring.of(settings.keyring).user_token
    return {"version": version("perdure"), "token": token, "fingerprint": tls.fingerprint if tls else ""}
