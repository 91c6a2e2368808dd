"""The section `notify` of config.yaml: what it means, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from perdure.controller.runtime.config.config_file import ConfigFile, SettingsError
from perdure.controller.runtime.config.notify_config import NotifyConfig, NotifyRule, read_notify_config

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CHANNELS = "channels: {ops: {slack: 'https://a.example/x'}}"


def read(home: Path, section: str, *, listens_on_loopback: bool = True) -> NotifyConfig:
    text = yaml.safe_dump({"notify": yaml.safe_load(f"{{{section}}}")})
    (home / "config.yaml").write_text(text)
    return read_notify_config(ConfigFile.load(home), listens_on_loopback=listens_on_loopback)


def test_section__is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "channels: {ops: {webhook: 'https://a.example/x', secret: " + SECRET + ", digest: 5m}, "
        "mail: {email: a@example.org}}, smtp: {host: smtp.example.org, from: p@example.org, password_file: pw}, "
        "rules: [{to: ops}, {when: job.failed, to: [mail], user: a*}]",
    )
    ops, mail = config.channels["ops"], config.channels["mail"]
    assert (ops.kind, ops.digest_s, len(ops.secret or b"")) == ("webhook", 300.0, 24)
    assert mail.target == "a@example.org"
    assert config.smtp is not None
    assert config.smtp.password_file == tmp_path / "pw"
    assert config.rules[1] == NotifyRule(("job.failed",), ("mail",), user="a*")
    assert config.rules[0].matches("job.succeeded", user="b", name="j")
    assert not config.rules[0].matches("job.started", user="b", name="j"), "not among the default events"


@pytest.mark.parametrize(
    ("on_loopback", "given", "runs"), [(True, "", True), (False, "", False), (False, "true", True)]
)
def test_callbacks__run_where_nobody_else_calls(tmp_path: Path, on_loopback: bool, given: str, runs: bool) -> None:
    section = f"event_callback: {given}" if given else ""
    assert read(tmp_path, section, listens_on_loopback=on_loopback).runs_callbacks is runs


@pytest.mark.parametrize(
    "text",
    [
        "notify: {channels: {ops: 'https://hooks/T/B/s3cret'}}",
        "notify: {channels: {ops: {'slack https://hooks/T/B/s3cret'}}}",
        "notify: {channels: {ops: ['https://hooks/T/B/s3cret']}}",
        "notify: {channels: {ops: {email: 's3cret'}}}",
        "notify: {smtp: 'smtp://perdure:s3cret@a.example'}",
        "notify: {rules: s3cret}",
        "notify: s3cret",
        "[{database: {url: s3cret}}]",
    ],
)
def test_mistake__is_named_without_the_secret(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"expected .*") as caught:
        read_notify_config(ConfigFile.load(tmp_path), listens_on_loopback=True)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("channels: {ops: {}}", "exactly one of webhook, slack, email, apprise"),
        ("channels: {ops: {slack: 'https://a', webhook: 'https://b'}}", "exactly one of"),
        ("channels: {ops: {slack: 'a.example'}}", "begins with https://"),
        ("channels: {ops: {slack: 'ftp://a.example'}}", "begins with https://"),
        ("channels: {ops: {webhook: 'https://a.example:x/'}}", "begins with https://"),
        ("channels: {ops: {slack: 'https://a.example', secret: x}}", "has no effect on slack"),
        ("channels: {ops: {webhook: 'https://a.example', secret: short}}", "openssl rand -base64 32"),
        ("channels: {ops: {webhook: 'https://a.example', digest: soon}}", "a duration such as"),
        ("channels: {ops: {email: nobody}}", "expected an e-mail address"),
        ("channels: {ops: {email: a@example.org}}", "mail needs a server"),
        ("channels: {'a b': {slack: 'https://a.example'}}", "letters, digits, dashes"),
        ("channels: {event_callback: {slack: 'https://a.example'}}", "a channel's name"),
        (CHANNELS + ", rules: [{to: opps}]", "rule 1: there is no channel 'opps'"),
        (CHANNELS + ", rules: [{to: ops, when: job.exploded}]", "there is no event 'job.exploded'"),
        (CHANNELS + ", rules: [{when: job.failed}]", "expected a mapping with `to`"),
        ("smtp: {host: a}", "notify.smtp.from: expected a text"),
        ("smtp: {host: a, from: b, port: 0}", "expected a port"),
        ("smtp: {host: a, from: b, user: 7}", "notify.smtp.user: expected a text"),
        ("smtp: {host: a, from: b, security: ssl}", "expected starttls, tls or none"),
        ("event_callback: maybe", "expected true or false"),
    ],
)
def test_mistakes__are_named_with_their_place(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read(tmp_path, section)
    assert "config.yaml" in str(caught.value)


def test_collector__gets_every_end_without_a_rule(tmp_path: Path) -> None:
    config = read(tmp_path, "channels: {traces: {otlp: 'https://a.example/v1/traces', headers: {api-key: k}}}")
    assert config.channels["traces"].headers == {"api-key": "k"}
    (rule,) = config.rules
    assert rule.to == ("traces",)
    assert rule.matches("job.failed", user="u", name="n")
    assert not rule.matches("job.preempted", user="u", name="n")


@pytest.mark.parametrize("headers", ["7", "{api-key: 7}", "{'api key': k}", '{k: "a\\nb"}'])
def test_headers__are_names_and_texts_of_one_line(tmp_path: Path, headers: str) -> None:
    with pytest.raises(SettingsError, match="expected a mapping of header names"):
        read(tmp_path, "channels: {traces: {otlp: 'https://a.example/', headers: " + headers + "}}")
