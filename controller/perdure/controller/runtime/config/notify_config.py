"""Where notifications go: the `notify` section of config.yaml.

```yaml
notify:
  channels:
    ops: {webhook: https://example.org/hook, secret: whsec_…}   # signed as Standard Webhooks
    chat: {slack: https://hooks.slack.com/services/…}
    mail: {email: [ops@example.org], digest: 1h}
    phone: {apprise: tgram://…}                                 # needs the extra [notify]
    traces: {otlp: https://otel.example.org/v1/traces}          # of each job that has ended, without a rule
  smtp: {host: smtp.example.org, from: perdure@example.org}
  rules:
    - {when: [job.failed, job.stuck], to: [ops, chat]}
    - {when: job.*, user: me, name: train-*, to: mail}
```

A task names channels with its own `notify`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.controller.runtime.config.config_file import ConfigFile, ErrorCollector, kind_of
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.sdk.notify.events import DEFAULT_EVENTS, EVENTS, JOB_ENDS
from perdure.sdk.spec.problems import InvalidValue
from perdure.sdk.spec.values.deadlines import DURATION, parse_duration, seconds

CALLBACK = "event_callback"
"""The channel that runs a task's `event_callback`. No configured channel may have this name."""
KINDS = ("webhook", "slack", "email", "apprise", "otlp")
_OPTIONS = {"webhook": ("secret", "ca_file"), "slack": (), "email": (), "apprise": (), "otlp": ("headers", "ca_file")}
_MAX_CHANNELS = 50
_CHANNEL = "notify.channels.<name>"

CONFIG_KEYS = (
    ConfigKey(f"{_CHANNEL}.webhook", "URL", "none", "Sends each event as JSON, signed if there is a secret."),
    ConfigKey(
        f"{_CHANNEL}.secret",
        "text",
        "none",
        "The key of a webhook's signature: `whsec_` and 24 to 64 bytes in base64 (Standard Webhooks).",
    ),
    ConfigKey(f"{_CHANNEL}.ca_file", "path", "none", "Certificates that a webhook's server is trusted by, in PEM."),
    ConfigKey(f"{_CHANNEL}.slack", "URL", "none", "Posts each event as a message to an incoming webhook of Slack."),
    ConfigKey(f"{_CHANNEL}.email", "list of text", "none", "Mails each event to these addresses; needs `notify.smtp`."),
    ConfigKey(f"{_CHANNEL}.apprise", "URL", "none", "Sends each event with Apprise, which needs the extra [notify]."),
    ConfigKey(
        f"{_CHANNEL}.otlp",
        "URL",
        "none",
        "Sends the trace of each job that has ended to a collector of OpenTelemetry (OTLP over HTTP, as JSON).",
    ),
    ConfigKey(f"{_CHANNEL}.headers", "mapping", "{}", "Headers for a collector, such as the key of a service."),
    ConfigKey(f"{_CHANNEL}.digest", "duration", "none", "Collects events for so long, and sends them as one message."),
    ConfigKey("notify.smtp.host", "text", "required", "The server that sends the mail."),
    ConfigKey("notify.smtp.port", "whole number", "587", "Its port."),
    ConfigKey("notify.smtp.from", "text", "required", "The address that mails come from."),
    ConfigKey("notify.smtp.user", "text", "none", "The user that logs in."),
    ConfigKey("notify.smtp.password_file", "path", "none", "The file of the password, relative to PERDURE_HOME."),
    ConfigKey("notify.smtp.security", "one of starttls, tls, none", "starttls", "How the connection is encrypted."),
    ConfigKey("notify.rules", "list", "[]", "Which events go to which channels: `when`, `to`, and `user` and `name`."),
    ConfigKey(
        "notify.allow_private_addresses",
        "true or false",
        "false",
        "Whether webhooks may call addresses of this computer and of private networks.",
    ),
    ConfigKey(
        "notify.event_callback",
        "true or false",
        "true if the controller listens on loopback only",
        "Whether the `event_callback` of tasks runs on the controller's computer, as its user.",
    ),
)


@dataclass(frozen=True)
class ChannelConfig:
    """One channel. `target`: a URL, or addresses separated by commas."""

    name: str
    kind: str  # one of KINDS
    target: str
    secret: bytes | None = None
    ca_file: Path | None = None
    digest_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SmtpConfig:
    host: str
    port: int
    sender: str
    user: str | None = None
    password_file: Path | None = None
    security: str = "starttls"


@dataclass(frozen=True)
class NotifyRule:
    """Events whose kind matches a pattern of `when` go to `to`. `user` and `name` are patterns, too."""

    when: tuple[str, ...]
    to: tuple[str, ...]
    user: str = "*"
    name: str = "*"

    def matches(self, kind: str, *, user: str, name: str) -> bool:
        is_wanted = any(fnmatchcase(kind, pattern) for pattern in self.when)
        return is_wanted and fnmatchcase(user, self.user) and fnmatchcase(name, self.name)


@dataclass(frozen=True)
class NotifyConfig:
    channels: Mapping[str, ChannelConfig] = field(default_factory=dict)
    rules: tuple[NotifyRule, ...] = ()
    smtp: SmtpConfig | None = None
    allow_private_addresses: bool = False
    runs_callbacks: bool = False


NO_NOTIFICATIONS = NotifyConfig()


def read_notify_config(source: ConfigFile, *, listens_on_loopback: bool) -> NotifyConfig:
    """From config.yaml. Raises SettingsError, which names line and key: one line for each thing that is wrong."""
    errors = ErrorCollector()
    section = source.section("notify", child_names(CONFIG_KEYS, "notify"))
    given = section.get("channels") or {}
    if not isinstance(given, dict) or len(given) > _MAX_CHANNELS:
        raise source.error(("notify", "channels"), f"expected at most {_MAX_CHANNELS} channels by name")
    smtp = errors.attempt(lambda: _smtp(source, section), None)
    channels: dict[str, ChannelConfig] = {}
    for name, value in given.items():
        channel = errors.attempt(lambda name=name, value=value: _channel(source, name, value), None)  # type: ignore[misc]
        if channel is not None:
            channels[channel.name] = channel
    no_rules: tuple[NotifyRule, ...] = ()
    rules = errors.attempt(lambda: _rules(source, section, given), no_rules)
    errors.raise_if_any()
    if smtp is None and (mails := [c.name for c in channels.values() if c.kind == "email"]):
        raise source.error(("notify", "channels", mails[0]), "mail needs a server: add notify.smtp with host and from")
    is_open, runs = section.get("allow_private_addresses", False), section.get(CALLBACK, listens_on_loopback)
    for name, value in (("allow_private_addresses", is_open), (CALLBACK, runs)):
        if not isinstance(value, bool):
            raise source.error(("notify", name), f"expected true or false, found {value!r}")
    collectors = tuple(name for name, channel in channels.items() if channel.kind == "otlp")
    own_rules = (NotifyRule(JOB_ENDS, collectors),) if collectors else ()
    return NotifyConfig(channels, (*rules, *own_rules), smtp, is_open, runs)


def _channel(source: ConfigFile, name: Any, value: Any) -> ChannelConfig:
    path = ("notify", "channels", str(name))
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum() or name == CALLBACK:
        raise source.error(path, "a channel's name has letters, digits, dashes and underscores")
    if not isinstance(value, dict):
        raise source.error(path, f"expected a mapping such as {{slack: https://…}}, found {kind_of(value)}")
    if any("://" in str(key) for key in value):
        raise source.error(path, "expected a space after the colon, such as in {slack: https://…}")
    source.check(value, path, child_names(CONFIG_KEYS, _CHANNEL))
    kinds = [kind for kind in KINDS if kind in value]
    if len(kinds) != 1:
        raise source.error(path, f"expected exactly one of {', '.join(KINDS)}")
    (kind,) = kinds
    for option in value.keys() - {kind, "digest"} - set(_OPTIONS[kind]):
        raise source.error((*path, option), f"has no effect on {kind}")
    secret = value.get("secret")
    return ChannelConfig(
        name,
        kind,
        _target(source, (*path, kind), kind, value[kind]),
        secret=_secret(source, (*path, "secret"), secret) if secret is not None else None,
        ca_file=source.path.parent / Path(str(value["ca_file"])).expanduser() if value.get("ca_file") else None,
        headers=_headers(source, (*path, "headers"), value.get("headers") or {}),
        digest_s=_duration(source, (*path, "digest"), value["digest"]) if value.get("digest") is not None else None,
    )


def _headers(source: ConfigFile, path: tuple[str, ...], value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(map(_is_header, value.items())):
        raise source.error(path, "expected a mapping of header names to texts of one line, such as {api-key: …}")
    return dict(value)


def _is_header(item: tuple[object, object]) -> bool:
    name, text = item
    is_name = isinstance(name, str) and name.replace("-", "").isalnum() and name.isascii()
    return is_name and isinstance(text, str) and text.isascii() and text.isprintable()


def _target(source: ConfigFile, path: tuple[str, ...], kind: str, value: Any) -> str:
    if kind == "email":
        addresses = [value] if isinstance(value, str) else value
        if not isinstance(addresses, list) or not addresses or not all(_is_address(a) for a in addresses):
            raise source.error(path, f"expected an e-mail address or a list of them, found {kind_of(value)}")
        return ",".join(addresses)
    schemes = ("http", "https") if kind in ("webhook", "slack", "otlp") else ()
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        is_url = parts is not None and bool(parts.scheme) and (not schemes or bool(parts.hostname and parts.port != 0))
    except ValueError:  # of a port that is no number
        is_url = False
    if not is_url or parts is None or (schemes and parts.scheme not in schemes):
        raise source.error(path, "expected a URL" + (" that begins with https://" if schemes else ""))
    return str(value)


def _is_address(value: object) -> bool:
    return isinstance(value, str) and "@" in value and value.isprintable() and not set(value) & set(" ,;<>\"'")


def _secret(source: ConfigFile, path: tuple[str, ...], value: Any) -> bytes:
    try:
        key = base64.b64decode(str(value).removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not str(value).startswith("whsec_") or not 24 <= len(key) <= 64:
        fix = "write whsec_ and the output of `openssl rand -base64 32`"
        raise source.error(path, f"expected whsec_ and 24 to 64 bytes in base64; {fix}")
    return key


def _duration(source: ConfigFile, path: tuple[str, ...], value: Any) -> float:
    try:
        return seconds(parse_duration(value))
    except InvalidValue as error:
        raise source.error(path, f"expected {DURATION}, found {value!r}") from error


def _smtp(source: ConfigFile, section: Mapping[str, Any]) -> SmtpConfig | None:
    value = section.get("smtp")
    if value is None:
        return None
    path = ("notify", "smtp")
    if not isinstance(value, dict):
        raise source.error(path, f"expected a mapping with host and from, found {kind_of(value)}")
    source.check(value, path, child_names(CONFIG_KEYS, "notify.smtp"))
    for name in ("host", "from", "user"):
        is_missing = name == "user" and value.get(name) is None
        if not is_missing and (not isinstance(value.get(name), str) or not value[name]):
            raise source.error((*path, name), "expected a text")
    port, security = value.get("port", 587), value.get("security", "starttls")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise source.error((*path, "port"), f"expected a port, found {port!r}")
    if security not in ("starttls", "tls", "none"):
        raise source.error((*path, "security"), f"expected starttls, tls or none, found {security!r}")
    password = value.get("password_file")
    file = source.path.parent / Path(str(password)).expanduser() if password else None
    return SmtpConfig(value["host"], port, value["from"], value.get("user"), file, security)


def _rules(source: ConfigFile, section: Mapping[str, Any], channels: Iterable[Any]) -> tuple[NotifyRule, ...]:
    value = section.get("rules") or []
    path = ("notify", "rules")
    if not isinstance(value, list):
        raise source.error(path, f"expected a list, found {kind_of(value)}")
    rules = []
    for number, rule in enumerate(value):
        where = f"rule {number + 1}"
        if not isinstance(rule, dict) or not rule.keys() <= {"when", "to", "user", "name"} or "to" not in rule:
            raise source.error(path, f"{where}: expected a mapping with `to`, and `when`, `user` or `name`")
        when, to = _texts(rule.get("when", list(DEFAULT_EVENTS))), _texts(rule["to"])
        if to is None or when is None:
            raise source.error(path, f"{where}: expected a text or a list of texts in `when` and `to`")
        if unknown := [name for name in to if name not in channels]:
            raise source.error(path, f"{where}: there is no channel {unknown[0]!r} in notify.channels")
        if unknown := [kind for kind in when if not any(fnmatchcase(event, kind) for event in EVENTS)]:
            raise source.error(path, f"{where}: there is no event {unknown[0]!r}; events: {', '.join(EVENTS)}")
        rules.append(NotifyRule(when, to, str(rule.get("user", "*")), str(rule.get("name", "*"))))
    return tuple(rules)


def _texts(value: Any) -> tuple[str, ...] | None:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
        return None
    return tuple(items)
