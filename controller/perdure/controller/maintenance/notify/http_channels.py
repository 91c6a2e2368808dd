"""Channels over HTTP: signed webhooks (Standard Webhooks 1.0), and Slack."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass

from perdure.controller.maintenance.notify.channel_protocol import Delivered, Message, NotDelivered
from perdure.controller.maintenance.notify.guarded_post import GuardedPost
from perdure.controller.runtime.clock import Clock

_MAX_SLACK_CHARS = 3000


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: HMAC-SHA256 of id, time and body, as the specification of Standard Webhooks
    says."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


@dataclass(frozen=True)
class WebhookChannel:
    """Posts the body as JSON. `clock`: the wall clock; receivers refuse a signature that is minutes old."""

    post: GuardedPost
    secret: bytes | None
    clock: Clock

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        body = json.dumps(message.body, separators=(",", ":")).encode()
        timestamp = int(self.clock.now())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
        }
        if self.secret is not None:
            headers["webhook-signature"] = sign(self.secret, message.id, timestamp, body)
        return self.post.send(body, headers)


@dataclass(frozen=True)
class SlackChannel:
    """Posts a message to an incoming webhook of Slack, or of a chat that takes the same form."""

    post: GuardedPost

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        text = f"*{_escape(message.title)}*\n{_escape(message.text)}"[:_MAX_SLACK_CHARS]
        return self.post.send(json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})


def _escape(text: str) -> str:
    """Slack reads &, < and > as markup: a job's name must not become a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
