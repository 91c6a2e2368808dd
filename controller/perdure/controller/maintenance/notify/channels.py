"""Builds the channels of a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.controller.maintenance.notify.channel_protocol import Deliverer
from perdure.controller.maintenance.notify.child_channels import AppriseChannel
from perdure.controller.maintenance.notify.guarded_post import GuardedPost
from perdure.controller.maintenance.notify.http_channels import SlackChannel, WebhookChannel
from perdure.controller.maintenance.notify.mail_channel import MailChannel
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.notify_config import ChannelConfig, NotifyConfig


def build_channels(config: NotifyConfig, wall_clock: Clock) -> Mapping[str, Deliverer]:
    """The channels by name."""
    return {name: _build(channel, config, wall_clock) for name, channel in config.channels.items()}


def _build(channel: ChannelConfig, config: NotifyConfig, wall_clock: Clock) -> Deliverer:
    post = GuardedPost(channel.target, config.allow_private_addresses, channel.ca_file)
    match channel.kind:
        case "webhook":
            return WebhookChannel(post, channel.secret, wall_clock)
        case "slack":
            return SlackChannel(post)
        case "email":
            assert config.smtp is not None, "checked when the configuration is read"
            return MailChannel(config.smtp, tuple(channel.target.split(",")), wall_clock)
        case _:
            return AppriseChannel(channel.target)
