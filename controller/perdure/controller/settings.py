"""What the daemon is told: PERDURE_HOME and its `config.yaml`.

```yaml
listen:
  host: 127.0.0.1                       # TLS and names: see `listening`
  port: 0                               # a free port at the first start, the same one ever after
  advertise: https://perdure.lan:8080  # where users and machines reach it, when that is elsewhere: a balancer
uploads: {max_gib: 20}
database:
  url: postgresql://perdure@db/perdure  # also PERDURE_DATABASE_URL; without one, SQLite in PERDURE_HOME
  lease_s: 10                           # a controller that has not been heard of for so long loses its jobs
keyring: /etc/perdure/keyring          # folder of `secret.key` and `token`; also PERDURE_KEYRING
limits: {boot_timeout_s: 900, silent_s: 180, drain_s: 60}  # and of users: see `bounds`
nodes: {beat_s: 5, power_off_after_s: 21600}
log_level: info
retention: {events_days: 90}            # what is removed of jobs that ended so long ago: see `retention`; else nothing
probes: {…}                             # none without it: see `probing`
default_store: s3                       # of buckets that are only named; without one, the local store
local: {…}                              # each cloud's own section, and its `bounds`; `local: false` turns it off
r2: {…}                                 # each store's: see docs/buckets.md
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.controller.bounds import USER_FIELDS, Bounds, read_bounds
from perdure.controller.listening import LISTEN_FIELDS, Listening, ListeningError, read_listening
from perdure.recovery.job import Limits
from perdure.sdk.problems import Path as Keys
from perdure.sdk.problems import TaskError, field_name
from perdure.sdk.yaml_reader import Document, read_file

STORES = ("local", "s3", "gcs", "azure", "r2", "nebius", "oci", "coreweave", "vastdata")
_NEED_NO_SECTION = ("local", "s3", "gcs", "azure")
_KNOWN = (
    *("listen", "uploads", "limits", "nodes", "log_level", "database", "keyring", "probes", "default_store"),
    "retention",
    *("local", "aws", "gcp", "azure", "kubernetes", "jobs"),
    *("s3", "gcs", "azure_blob", "r2", "nebius", "oci", "coreweave", "vastdata"),
)
_HIGHEST_PORT = 65_535
_SHORTEST_BEAT_S = 0.1
_SHORTEST_LEASE_S = 1.0


class SettingsError(Exception):
    """The configuration can not be used. The text says where and what to do."""


@dataclass(frozen=True)
class NodeSettings:
    """`beat_s`: how often a node gives a sign of life; three that fail to come are a silence.

    `power_off_after_s`: a node on which nothing runs powers itself off after so long without a controller. None: six
    hours, and a month on the local cloud.
    """

    beat_s: float = 5.0
    power_off_after_s: float | None = None


@dataclass(frozen=True)
class RetentionSettings:
    """After how many days from a job's end its timeline, its logs, and all of it are removed. None: never."""

    events_days: float | None = None
    logs_days: float | None = None
    jobs_days: float | None = None


@dataclass(frozen=True)
class Settings:
    """`sections`: the section of each cloud, by name, as read. `advertise`: the URL at which users and machines reach
    this controller, where it is not the socket's own. `keyring`: the folder of its secrets. `default_store`: of buckets
    that are only named; None: the local one, or S3 where there is none."""

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    database_url: str = ""
    lease_s: float = 10.0
    keyring_folder: Path | None = None
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    sections: dict[str, Any] = field(default_factory=dict)
    listening: Listening = field(default_factory=Listening)
    most_upload_bytes: int = 20 * 2**30
    default_store: str | None = None
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'perdure.db'}"

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which this controller may be called."""
        advertised = urlsplit(self.advertise).hostname
        return frozenset({self.host.lower(), *self.listening.names, *([advertised] if advertised else [])})

    @property
    def is_alone(self) -> bool:
        """No other controller can share this one's database: it is a file of its home."""
        return self.url.startswith("sqlite")

    @property
    def keyring(self) -> Path:
        return self.keyring_folder or self.home

    @property
    def local_home(self) -> Path | None:
        """The folder under which this computer's machines live. None: the local cloud is off, as `local: false` says.

        Controllers behind one address may be on several computers, where each would take the others' machines for
        lost. So they have it only if a folder that all of them share is named.
        """
        section = self.sections.get("local")
        if section is False:
            return None
        named = section.get("directory") if isinstance(section, Mapping) else None
        if named:
            return Path(str(named)).expanduser().resolve()
        return self.home if self.is_alone or not self.advertise else None


LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def read_settings(home: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of `home`, from its config.yaml if there is one. Raises SettingsError, which names line and field."""
    source = ConfigFile.of(home)
    source.check(source.data, (), _KNOWN)
    listen = source.section("listen", ("host", "port", "advertise", *LISTEN_FIELDS))
    database = source.section("database", ("url", "lease_s"))
    host = str(listen.get("host", "127.0.0.1"))
    limits = source.seconds("limits", tuple(f.name for f in fields(Limits)), besides=USER_FIELDS)
    nodes = source.seconds("nodes", tuple(f.name for f in fields(NodeSettings)))
    if nodes.get("beat_s", _SHORTEST_BEAT_S) < _SHORTEST_BEAT_S:
        raise source.error(("nodes", "beat_s"), f"expected {_SHORTEST_BEAT_S:g} or more, found {nodes['beat_s']:g}")
    port = listen.get("port", 0)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _HIGHEST_PORT:
        raise source.error(("listen", "port"), f"expected a number from 0 to {_HIGHEST_PORT}, found {port!r}")
    level = str(source.data.get("log_level", "info")).lower()
    if level not in LOG_LEVELS:
        raise source.error(("log_level",), f"unknown level {level!r}; known: {', '.join(LOG_LEVELS)}")
    try:
        listening = read_listening(listen, host=host, home=home)
    except ListeningError as error:
        raise source.error(("listen", error.field), str(error)) from error
    keyring = environ.get("PERDURE_KEYRING") or source.data.get("keyring")
    found = Settings(
        home=home,
        host=host,
        port=port,
        advertise=_address(source, listen.get("advertise") or ""),
        database_url=str(environ.get("PERDURE_DATABASE_URL") or database.get("url") or ""),
        lease_s=_lease_s(source, database),
        keyring_folder=Path(str(keyring)).expanduser() if keyring else None,
        log_level=level,
        limits=replace(Limits(), **limits),
        nodes=replace(NodeSettings(), **nodes),
        sections={name: source.data[name] for name in _KNOWN if name in source.data},
        listening=listening,
        most_upload_bytes=_upload_limit(source),
        default_store=_default_store(source),
        retention=_retention(source),
        bounds=read_bounds(source),
    )
    if found.local_home is not None and not home.resolve().is_relative_to(found.local_home):
        why = f"{home} is not below it, and only what is below it is kept from the machines' eyes"
        raise source.error(("local", "directory"), f"{found.local_home}: {why}; put PERDURE_HOME there")
    return found


def _retention(source: ConfigFile) -> RetentionSettings:
    """At least a day: what ended just now is still counted and looked at."""
    days = source.section("retention", tuple(f.name for f in fields(RetentionSettings)))
    for name, value in days.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf")
        ):
            expected = "expected days (a number from 1), or null for ever"
            raise source.error(("retention", name), f"{expected}, found {value!r}")
    return RetentionSettings(**days)


def _default_store(source: ConfigFile) -> str | None:
    """One that needs no section, or has one."""
    named = source.data.get("default_store")
    usable = [name for name in STORES if name in source.data or name in _NEED_NO_SECTION]
    if named is not None and named not in usable:
        raise source.error(("default_store",), f"expected one of {', '.join(usable)}, found {named!r}")
    return named


def _lease_s(source: ConfigFile, database: Mapping[str, Any]) -> float:
    value = database.get("lease_s", Settings.lease_s)
    if isinstance(value, bool) or not isinstance(value, int | float) or not _SHORTEST_LEASE_S <= value < 3600:
        raise source.error(("database", "lease_s"), f"expected seconds (from {_SHORTEST_LEASE_S:g}), found {value!r}")
    return float(value)


def _address(source: ConfigFile, value: object) -> str:
    """The URL of a balancer, without a slash at its end. Raises SettingsError."""
    url = str(value).rstrip("/")
    if url and not (urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname):
        raise source.error(("listen", "advertise"), f"expected a URL like http://perdure.lan:8080, found {value!r}")
    return url


def _upload_limit(source: ConfigFile) -> int:
    value = source.section("uploads", ("max_gib",)).get("max_gib", 20)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise source.error(("uploads", "max_gib"), f"expected GiB (a number above 0), found {value!r}")
    return int(value * 2**30)


@dataclass(frozen=True)
class ConfigFile:
    """config.yaml as it was read, with the place of every field in it."""

    path: Path
    document: Document

    @classmethod
    def of(cls, home: Path) -> ConfigFile:
        """The file of `home`; an empty one if there is none. Raises SettingsError."""
        path = home / "config.yaml"
        try:
            documents = read_file(path) if path.exists() and path.read_text().strip() else []
        except TaskError as error:
            raise SettingsError("\n".join(map(str, error.problems))) from error
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: can not be read: {error}") from error
        if len(documents) > 1:
            raise SettingsError(f"{path}: expected one document, found {len(documents)}; remove the `---` lines")
        return cls(path, documents[0] if documents else Document({}))

    @property
    def data(self) -> dict[str, Any]:
        if not isinstance(self.document.value, dict):
            raise SettingsError(f"{self.path}: expected a mapping at the top, found {self.document.value!r}")
        return self.document.value

    def section(self, name: str, known: tuple[str, ...]) -> dict[str, Any]:
        """The mapping at `name`, whose fields are all `known`; empty if there is none."""
        value = self.data.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error((name,), f"expected a mapping, found {value!r}")
        self.check(value, (name,), known)
        return value

    def seconds(self, name: str, known: tuple[str, ...], *, besides: tuple[str, ...] = ()) -> dict[str, float]:
        """The mapping at `name`, whose values are all seconds, without its fields that are named by `besides`."""
        values = {key: value for key, value in self.section(name, known + besides).items() if key not in besides}
        for field_of, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise self.error((name, field_of), f"expected seconds (a number from 0), found {value!r}")
        return {field_of: float(value) for field_of, value in values.items()}

    def check(self, mapping: dict[str, Any], path: Keys, known: tuple[str, ...]) -> None:
        for name in mapping:
            if name not in known:
                raise self.error((*path, name), f"no such setting; known: {', '.join(known)}")

    def error(self, field: Keys, message: str) -> SettingsError:
        return SettingsError(f"{self.place(field)}: {field_name(field)}: {message}")

    def place(self, field: Keys) -> str:
        """`file:line` of a field, or of what should hold it."""
        at = self.document.position(field, of_key=True)
        return f"{self.path}:{at.line}" if at else str(self.path)
