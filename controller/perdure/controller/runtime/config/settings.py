"""The daemon's settings: PERDURE_HOME and its `config.yaml`.

```yaml
listen:
  host: 127.0.0.1                       # TLS and DNS names: see `listen`
  port: 0                               # a free port at the first start, the same one from then on
  advertise: https://perdure.lan:8080   # the URL for users and machines, if it differs: that of a load balancer
uploads: {max_gib: 20}
database:
  url: postgresql://perdure@db/perdure  # also PERDURE_DATABASE_URL; default: SQLite in PERDURE_HOME
  lease_duration_s: 10                  # others take over a controller's jobs this long after its last lease renewal
keyring: /etc/perdure/keyring           # the folder of `secret.key` and `token`; also PERDURE_KEYRING
timeouts: {boot_timeout_s: 900, node_timeout_s: 180, drain_timeout_s: 60}
limits: {max_jobs_per_user: 2000}       # quotas of users, and what one job may use: see `limits`
nodes: {heartbeat_interval_s: 5, power_off_after_s: 21600}
log_level: info
retention: {events_days: 90}            # when data of ended jobs is deleted; default: never
probes: {…}                             # off without this section: see `maintenance.offer_probes`
backup: {…}                             # off without this section: see `maintenance.backup_schedule`
notify: {…}                             # where notifications go: see `notify_config`
services: {…}                           # certificates of endpoints by ACME: see `acme_config`
clusters: {keep_disks: true}            # default: false; see `clusters_config`
default_store: s3                       # of buckets that have only a name; default: the local store
local: {…}                              # one section per cloud; `local: false` turns the local cloud off
r2: {…}                                 # one section per store: see docs/guides/buckets.md
```

The keys of the sections of clouds, stores, probes and backups are described and read where they are used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.controller.runtime.config.config_file import ConfigFile, ErrorCollector
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.limits import LIMIT_KEYS, JobBounds, Quotas, read_job_bounds, read_quotas
from perdure.controller.runtime.config.listen import (
    DEFAULT_HOST,
    LISTEN_KEYS,
    ListenConfig,
    ListenError,
    read_listen_config,
)
from perdure.recovery.job import Timeouts
from perdure.sdk.connection.installation import installed_clouds

STORES = ("local", "s3", "gcs", "azure", "r2", "nebius", "oci", "coreweave", "vastdata")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
_STORES_WITHOUT_SECTION = ("local", "s3", "gcs", "azure")
# Sections whose keys other modules describe and read, besides the sections of the installed clouds.
OTHER_SECTIONS = (
    "probes",
    "backup",
    "notify",
    "services",
    "oidc",
    "clusters",
    "s3",
    "gcs",
    "azure_blob",
    "r2",
    "nebius",
    "oci",
    "coreweave",
    "vastdata",
)
_MAX_PORT = 65_535
_MIN_HEARTBEAT_INTERVAL_S = 0.1
_MIN_LEASE_DURATION_S, _MAX_LEASE_DURATION_S = 1.0, 3600.0


@dataclass(frozen=True)
class NodeSettings:
    """The `nodes` section."""

    heartbeat_interval_s: float = 5.0  # a node is disconnected after three missed heartbeats
    power_off_after_s: float | None = None  # an idle node without a controller; None: six hours, a month if local


@dataclass(frozen=True)
class RetentionSettings:
    """How many days after its end a job's timeline, its logs, and the whole job are deleted, and after how many days an
    entry of the audit log, and the metrics of a node after its last report. None: never."""

    events_days: float | None = None
    logs_days: float | None = None
    jobs_days: float | None = None
    audit_days: float | None = 400.0
    metrics_days: float | None = 30.0


@dataclass(frozen=True)
class Settings:
    """The daemon's settings. Sections of clouds, stores and probes are kept as they were read."""

    home: Path
    host: str = DEFAULT_HOST
    port: int = 0
    advertise: str = ""  # the URL at which users and machines reach this controller; "": the socket's own
    database_url: str = ""  # "": SQLite in `home`
    lease_duration_s: float = 10.0
    keyring_folder: Path | None = None  # None: `home`
    log_level: str = "info"
    timeouts: Timeouts = field(default_factory=Timeouts)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    sections: dict[str, Any] = field(default_factory=dict)  # by name, as in the file
    listen: ListenConfig = field(default_factory=ListenConfig)
    max_upload_bytes: int = 20 * 2**30
    max_unpacked_bytes: int = 100 * 2**30  # of the files of one upload
    default_store: str | None = None  # of buckets that have only a name; None: the local store, or S3 without one
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    quotas: Quotas = field(default_factory=Quotas)
    bounds: JobBounds = field(default_factory=JobBounds)
    config_modified_at_ns: int | None = None  # of the config.yaml that was read; None: there was none

    @property
    def has_outdated_config(self) -> bool:
        """Whether config.yaml was changed after it was read: a change takes effect when the controller starts again."""
        return ConfigFile.modified_at_ns(self.home) != self.config_modified_at_ns

    @property
    def database_address(self) -> str:
        """The SQLAlchemy URL of the database."""
        return self.database_url or f"sqlite:///{self.home / 'perdure.db'}"

    @property
    def host_names(self) -> frozenset[str]:
        """The names by which clients may call this controller."""
        advertised = urlsplit(self.advertise).hostname
        return frozenset({self.host.lower(), *self.listen.dns_names, *([advertised] if advertised else [])})

    @property
    def is_single_controller(self) -> bool:
        """Whether no other controller can share the database, because it is a file in this one's home."""
        return self.database_address.startswith("sqlite")

    @property
    def keyring_directory(self) -> Path:
        return self.keyring_folder or self.home

    @property
    def local_home(self) -> Path | None:
        """The folder of the local cloud's machines. None: the local cloud is off, as `local: false` does.

        Controllers behind one address may run on several computers, where each would consider the others' machines
        lost. They have a local cloud only if `local.directory` names a folder that all of them share.
        """
        section = self.sections.get("local")
        if section is False:
            return None
        directory = section.get("directory") if isinstance(section, Mapping) else None
        if directory:
            return Path(str(directory)).expanduser().resolve()
        return self.home if self.is_single_controller or not self.advertise else None


_TIMEOUTS = Timeouts()
_NODES = NodeSettings()


def _seconds(path: str, default: float, meaning: str) -> ConfigKey:
    return ConfigKey(path, "number", f"{default:g}", meaning, "s")


def _days(path: str, subject: str) -> ConfigKey:
    return ConfigKey(path, "number", "null (never)", f"How long after a job's end {subject} deleted.", "days")


SETTINGS_KEYS = (
    *LISTEN_KEYS,
    ConfigKey("uploads.max_gib", "number", "20", "The largest archive of files that a user may upload.", "GiB"),
    ConfigKey(
        "uploads.max_unpacked_gib",
        "number",
        "100",
        "What the files of such an archive may amount to when the controller unpacks it into a bucket.",
        "GiB",
    ),
    ConfigKey(
        "database.url",
        "URL",
        "SQLite in PERDURE_HOME",
        "The PostgreSQL database of one or several controllers; PERDURE_DATABASE_URL takes precedence.",
    ),
    _seconds(
        "database.lease_duration_s",
        Settings.lease_duration_s,
        "How long a controller that stopped renewing its lease keeps its jobs before others take them over.",
    ),
    ConfigKey(
        "keyring",
        "path",
        "PERDURE_HOME",
        "The folder of `secret.key` and `token`; PERDURE_KEYRING takes precedence.",
    ),
    _seconds(
        "timeouts.boot_timeout_s",
        _TIMEOUTS.boot_timeout_s,
        "How long the agents of new machines have to connect before the machines are replaced.",
    ),
    _seconds(
        "timeouts.node_timeout_s",
        _TIMEOUTS.node_timeout_s,
        "How long a disconnected node whose machine still runs has to reconnect before it is replaced.",
    ),
    _seconds(
        "timeouts.drain_timeout_s",
        _TIMEOUTS.drain_timeout_s,
        "How long a workload has to save and flush after SIGTERM if no preemption notice sets the deadline.",
    ),
    _seconds(
        "timeouts.describe_interval_s",
        _TIMEOUTS.describe_interval_s,
        "The longest interval between two queries of the cloud for a disconnected node's machine.",
    ),
    _seconds(
        "timeouts.backoff_initial_s",
        _TIMEOUTS.backoff_initial_s,
        "The pause after a failed launch when no other offer is left; doubles with every further failure.",
    ),
    _seconds("timeouts.backoff_max_s", _TIMEOUTS.backoff_max_s, "The longest such pause."),
    _seconds(
        "timeouts.unsatisfiable_retry_s",
        _TIMEOUTS.unsatisfiable_retry_s,
        "How often offers are checked again for a job that has run before but that no offer satisfies any more.",
    ),
    *LIMIT_KEYS,
    _seconds(
        "nodes.heartbeat_interval_s",
        _NODES.heartbeat_interval_s,
        "How often a node sends a heartbeat; it counts as disconnected after three missed ones.",
    ),
    ConfigKey(
        "nodes.power_off_after_s",
        "number",
        "21600; 2592000 on the local cloud",
        "How long a node on which nothing runs waits for a controller before it powers itself off.",
        "s",
    ),
    ConfigKey("log_level", f"one of {', '.join(LOG_LEVELS)}", "info", "The lowest level that controller.log contains."),
    _days("retention.events_days", "its timeline is"),
    _days("retention.logs_days", "its logs are"),
    _days("retention.jobs_days", "the job with all its data is"),
    ConfigKey(
        "retention.audit_days",
        "number, or null (never)",
        "400",
        "How long after it was written an entry of the audit log is deleted.",
        "days",
    ),
    ConfigKey(
        "retention.metrics_days",
        "number, or null (never)",
        "30",
        "How long after its last report the metrics of a node are deleted.",
        "days",
    ),
    ConfigKey(
        "default_store",
        f"one of {', '.join(STORES)}",
        "local, or s3 without a local cloud",
        "The store of buckets for which a task gives only a name.",
    ),
    ConfigKey("jobs", "mapping", "none", "Accepted but unused: SkyPilot's settings of its jobs controller."),
)


def read_settings(home: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of `home`, from its config.yaml if there is one.

    Raises SettingsError, which names line and key: one line for each thing that is wrong.
    """
    modified_at_ns = ConfigFile.modified_at_ns(home)
    source = ConfigFile.load(home)
    sections = (*child_names(SETTINGS_KEYS), *OTHER_SECTIONS, *installed_clouds())
    data, errors = source.data, ErrorCollector()
    errors.attempt(lambda: source.check(data, (), sections), None)

    def section(name: str) -> dict[str, Any]:
        return errors.attempt(lambda: source.section(name, child_names(SETTINGS_KEYS, name)), {})

    listen, database = section("listen"), section("database")
    section("limits")
    host = str(listen.get("host", DEFAULT_HOST))
    keyring = environ.get("PERDURE_KEYRING") or data.get("keyring")
    settings = Settings(
        home=home,
        host=host,
        port=errors.attempt(lambda: _port(source, listen), 0),
        advertise=errors.attempt(lambda: _advertise(source, listen), ""),
        database_url=str(environ.get("PERDURE_DATABASE_URL") or database.get("url") or ""),
        lease_duration_s=errors.attempt(lambda: _lease_duration_s(source, database), Settings.lease_duration_s),
        keyring_folder=Path(str(keyring)).expanduser() if keyring else None,
        log_level=errors.attempt(lambda: _log_level(source), Settings.log_level),
        timeouts=errors.attempt(lambda: _timeouts(source), _TIMEOUTS),
        nodes=errors.attempt(lambda: _nodes(source), _NODES),
        sections={name: data[name] for name in sections if name in data},
        listen=errors.attempt(lambda: _listen_config(source, listen, host), ListenConfig()),
        max_upload_bytes=errors.attempt(lambda: _upload_limit(source, "max_gib", 20), 0),
        max_unpacked_bytes=errors.attempt(lambda: _upload_limit(source, "max_unpacked_gib", 100), 0),
        default_store=errors.attempt(lambda: _default_store(source), None),
        retention=errors.attempt(lambda: _retention(source), RetentionSettings()),
        quotas=errors.attempt(lambda: read_quotas(source), Quotas()),
        bounds=errors.attempt(lambda: read_job_bounds(source), JobBounds()),
        config_modified_at_ns=modified_at_ns,
    )
    errors.raise_if_any()
    if settings.local_home is not None and not home.resolve().is_relative_to(settings.local_home):
        why = f"PERDURE_HOME ({home}) is not inside it, so local machines could read the controller's secrets"
        raise source.error(("local", "directory"), f"{settings.local_home}: {why}; put PERDURE_HOME there")
    return settings


def _listen_config(source: ConfigFile, listen: Mapping[str, Any], host: str) -> ListenConfig:
    if isinstance(metrics := listen.get("metrics"), dict):
        source.check(metrics, ("listen", "metrics"), child_names(SETTINGS_KEYS, "listen.metrics"))
    try:
        return read_listen_config(listen, host=host, home=source.path.parent)
    except ListenError as error:
        raise source.error(("listen", error.field), str(error)) from error


def _timeouts(source: ConfigFile) -> Timeouts:
    return replace(Timeouts(), **source.seconds("timeouts", child_names(SETTINGS_KEYS, "timeouts")))


def _port(source: ConfigFile, listen: Mapping[str, Any]) -> int:
    port = listen.get("port", 0)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MAX_PORT:
        raise source.error(("listen", "port"), f"expected a number from 0 to {_MAX_PORT}, found {port!r}")
    return port


def _advertise(source: ConfigFile, listen: Mapping[str, Any]) -> str:
    """The URL without a trailing slash."""
    value = listen.get("advertise") or ""
    url = str(value).rstrip("/")
    if url and not (urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname):
        raise source.error(("listen", "advertise"), f"expected a URL like http://perdure.lan:8080, found {value!r}")
    return url


def _lease_duration_s(source: ConfigFile, database: Mapping[str, Any]) -> float:
    value = database.get("lease_duration_s", Settings.lease_duration_s)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _MIN_LEASE_DURATION_S <= value < _MAX_LEASE_DURATION_S:
        expected = f"seconds (from {_MIN_LEASE_DURATION_S:g}, below {_MAX_LEASE_DURATION_S:g})"
        raise source.error(("database", "lease_duration_s"), f"expected {expected}, found {value!r}")
    return float(value)


def _log_level(source: ConfigFile) -> str:
    level = str(source.data.get("log_level", "info")).lower()
    if level not in LOG_LEVELS:
        raise source.error(("log_level",), f"unknown level {level!r}; known: {', '.join(LOG_LEVELS)}")
    return level


def _nodes(source: ConfigFile) -> NodeSettings:
    settings = replace(NodeSettings(), **source.seconds("nodes", child_names(SETTINGS_KEYS, "nodes")))
    if (interval_s := settings.heartbeat_interval_s) < _MIN_HEARTBEAT_INTERVAL_S:
        expected = f"seconds (from {_MIN_HEARTBEAT_INTERVAL_S:g})"
        raise source.error(("nodes", "heartbeat_interval_s"), f"expected {expected}, found {interval_s:g}")
    return settings


def _upload_limit(source: ConfigFile, name: str, default_gib: float) -> int:
    value = source.section("uploads", child_names(SETTINGS_KEYS, "uploads")).get(name, default_gib)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise source.error(("uploads", name), f"expected GiB (a number above 0), found {value!r}")
    return int(value * 2**30)


def _default_store(source: ConfigFile) -> str | None:
    """The `default_store`, which must have a section unless it needs none."""
    store = source.data.get("default_store")
    usable = [name for name in STORES if name in source.data or name in _STORES_WITHOUT_SECTION]
    if store is not None and store not in usable:
        raise source.error(("default_store",), f"expected one of {', '.join(usable)}, found {store!r}")
    return store


def _retention(source: ConfigFile) -> RetentionSettings:
    """The `retention` section. Each period is at least a day: jobs that ended recently are still counted and shown."""
    days = source.section("retention", child_names(SETTINGS_KEYS, "retention"))
    for name, value in days.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf")
        ):
            expected = "expected days (a number from 1), or null to keep it forever"
            raise source.error(("retention", name), f"{expected}, found {value!r}")
    return RetentionSettings(**days)
