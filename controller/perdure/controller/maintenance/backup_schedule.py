"""Backups by schedule: the section `backup` of config.yaml.

```yaml
backup:                          # without this section there are none
  to: s3://my-bucket/perdure     # or a folder
  interval: 24h
  keep: 7
```
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Engine

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.records import facts
from perdure.sdk.spec.problems import InvalidValue
from perdure.sdk.spec.values.deadlines import DURATION, parse_duration, seconds

log = structlog.get_logger(__name__)

TICK_S = 60.0
RETRY_S = 900.0
_LAST = "backup.last"  # when the last backup was made, by the wall clock
CONFIG_KEYS = (
    ConfigKey("backup.to", "path or URL", "required", "Where backups are kept: a folder, or one in a bucket."),
    ConfigKey("backup.interval", "duration", "24h", "The time between two backups."),
    ConfigKey("backup.keep", "number", "7", "How many backups of this controller are kept there."),
)
Run = Callable[[str, int], str | None]
"""(where to, how many to keep) → why it failed; None if it did not"""


@dataclass(frozen=True)
class BackupConfig:
    """Where and how often backups are made."""

    to: str
    interval_s: float
    keep: int


def read_backup_config(settings: Settings) -> BackupConfig | None:
    """The section `backup` of config.yaml; None without one. Raises SettingsError, which names the field."""
    source = ConfigFile.load(settings.home)
    if source.data.get("backup") is None:
        return None
    section = source.section("backup", child_names(CONFIG_KEYS, "backup"))
    to, keep, interval = section.get("to"), section.get("keep", 7), section.get("interval", "24h")
    if not settings.is_single_controller:
        raise source.error(("backup",), "a PostgreSQL database has tools of its own (pg_dump): remove this section")
    if not isinstance(to, str) or not to:
        raise source.error(("backup", "to"), f"expected a folder or a URL like s3://bucket/folder, found {to!r}")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise source.error(("backup", "keep"), f"expected a number from 1, found {keep!r}")
    try:
        interval_s = seconds(parse_duration(interval))
    except InvalidValue as error:
        raise source.error(("backup", "interval"), f"expected {DURATION}, found {interval!r}") from error
    return BackupConfig(to if "://" in to else to.rstrip("/") + "/", interval_s, keep)


class BackupSchedule:
    """Makes a backup when the last one is old enough, also if it was made before this process started."""

    def __init__(self, config: BackupConfig, database: Engine, wall_clock: Clock, run: Run) -> None:
        self._config = config
        self._database = database
        self._wall_clock = wall_clock
        self._run = run
        self._retry_at = 0.0
        self._error: str | None = None

    def tick(self) -> None:
        """Make a backup if one is due. Takes as long as that. Raises what the database raises."""
        now = self._wall_clock.now()
        last = self._last()
        is_due = last is None or now - last >= self._config.interval_s or now < last  # the clock was set back
        if not is_due or (self._error is not None and 0 <= self._retry_at - now <= RETRY_S):
            return
        self._error = self._run(self._config.to, self._config.keep)
        if self._error is None:
            log.info("backup.made", to=self._config.to)
            with self._database.begin() as conn:
                facts.set(conn, _LAST, repr(now))
        else:
            self._retry_at = now + RETRY_S
            log.error("backup.failed", to=self._config.to, error=self._error)

    def status(self) -> dict[str, Any]:
        """Where backups go, when the last one was made (epoch seconds), and why the newest attempt failed."""
        return {"to": self._config.to, "last": self._last(), "error": self._error}

    def _last(self) -> float | None:
        with self._database.connect() as conn:
            stored = facts.get(conn, _LAST)
        return float(stored) if stored else None


def run_in_child(settings: Settings) -> Run:
    """Make backups in a process of its own: a backup uses a processor, and memory that the daemon would keep."""

    def run(to: str, keep: int) -> str | None:
        command = [sys.executable, "-P", "-m", "perdure.controller", "backup", "--home", str(settings.home)]
        done = subprocess.run(
            ["nice", *command, "--to", to, "--keep", str(keep)],
            cwd=settings.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return None
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]

    return run


def build(settings: Settings, database: Engine, wall_clock: Clock) -> BackupSchedule | None:
    """The schedule that config.yaml asks for; None if it asks for none."""
    config = read_backup_config(settings)
    return None if config is None else BackupSchedule(config, database, wall_clock, run_in_child(settings))
