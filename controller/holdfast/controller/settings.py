"""What the daemon is told: HOLDFAST_HOME and its `config.yaml`.

```yaml
listen: {host: 127.0.0.1, port: 0}     # 0: a free port at the first start, the same one ever after
limits: {boot_timeout_s: 900, silent_s: 180, drain_s: 60}
log_level: info
local: {…}                              # each cloud's own section
```
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from holdfast.recovery.job import Limits


class SettingsError(Exception):
    """The configuration can not be used. The text says where and what to do."""


@dataclass(frozen=True)
class Settings:
    """`clouds`: the section of each cloud, by name, as read."""

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    database_url: str = ""
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)
    sections: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'holdfast.db'}"


_KNOWN = ("listen", "limits", "log_level", "database_url", "local", "s3", "aws", "gcp", "azure", "kubernetes", "jobs")


def read_settings(home: Path) -> Settings:
    """Settings of `home`, from its config.yaml if there is one. Raises SettingsError."""
    path = home / "config.yaml"
    try:
        data = yaml.safe_load(path.read_text()) if path.exists() else None
    except (yaml.YAMLError, OSError) as error:
        raise SettingsError(f"{path}: can not be read: {error}") from error
    data = data or {}
    if not isinstance(data, dict):
        raise SettingsError(f"{path}: expected a mapping at the top, found {type(data).__name__}")
    unknown = sorted(set(data) - set(_KNOWN))
    if unknown:
        raise SettingsError(f"{path}: unknown section {', '.join(unknown)}; known: {', '.join(_KNOWN)}")
    listen = _mapping(data.get("listen"), f"{path}: listen", ("host", "port"))
    limits = _mapping(data.get("limits"), f"{path}: limits", tuple(f.name for f in fields(Limits)))
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise SettingsError(f"{path}: limits.{name}: expected seconds (a number >= 0), found {value!r}")
    return Settings(
        home=home,
        host=str(listen.get("host", "127.0.0.1")),
        port=int(listen.get("port", 0)),
        database_url=str(data.get("database_url", "")),
        log_level=str(data.get("log_level", "info")),
        limits=replace(Limits(), **{name: float(value) for name, value in limits.items()}),
        sections={name: data[name] for name in _KNOWN if name in data},
    )


def _mapping(value: object, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{where}: expected a mapping, found {value!r}")
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise SettingsError(f"{where}: unknown field {', '.join(map(str, unknown))}; known: {', '.join(known)}")
    return value
