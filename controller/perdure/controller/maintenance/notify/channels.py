"""Builds the channels of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.metadata import version

from sqlalchemy import Engine

from perdure.controller.maintenance.notify.channel_protocol import Deliverer
from perdure.controller.maintenance.notify.child_channels import AppriseChannel
from perdure.controller.maintenance.notify.guarded_post import GuardedPost
from perdure.controller.maintenance.notify.http_channels import SlackChannel, WebhookChannel
from perdure.controller.maintenance.notify.mail_channel import MailChannel
from perdure.controller.maintenance.notify.trace_channel import TraceChannel
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.notify_config import ChannelConfig, NotifyConfig


def build_channels(config: NotifyConfig, wall_clock: Clock, database: Engine, clock: Clock) -> Mapping[str, Deliverer]:
    """The channels by name. `clock`: of the times in the database."""
    make = partial(_build, config, wall_clock, database, clock)
    return {name: make(channel) for name, channel in config.channels.items()}


def _build(
    config: NotifyConfig, wall_clock: Clock, database: Engine, clock: Clock, channel: ChannelConfig
) -> Deliverer:
    post = GuardedPost(channel.target, config.allow_private_addresses, channel.ca_file)
    match channel.kind:
        case "webhook":
            return WebhookChannel(post, channel.secret, wall_clock)
        case "slack":
            return SlackChannel(post)
        case "email":
            assert config.smtp is not None, "checked when the configuration is read"
            return MailChannel(config.smtp, tuple(channel.target.split(",")), wall_clock)
        case "otlp":
            return TraceChannel(post, database, clock, version("perdure"), channel.headers)
        case _:
            return AppriseChannel(channel.target)
