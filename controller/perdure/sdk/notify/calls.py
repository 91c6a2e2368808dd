"""The calls of the controller's API about notifications."""

from __future__ import annotations

from perdure.sdk.connection import api_types
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.responses import expect, expect_list


def list_notifications(
    client: Client, *, limit: int = 50, channel: str | None = None, job_id: int | None = None
) -> list[api_types.Notification]:
    """The newest notifications first. Raises what `Client` raises."""
    query = {"limit": limit, "channel": channel, "job_id": job_id}
    return expect_list(api_types.Notification, client._call("GET", "/notifications", query=query), client.endpoint.url)


def test_channel(client: Client, channel: str) -> api_types.NotificationTest:
    """Send a test message to a channel, and wait for the result. Raises what `Client` raises."""
    sent = client._call_once("POST", "/notifications/test", body={"channel": channel})
    return expect(api_types.NotificationTest, sent, client.endpoint.url)
