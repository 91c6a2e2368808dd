"""Streams with several controllers: any connection of a user or a node may reach any of them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from e2e.peers.cluster import StartCluster
from perdure.agent.link.stream_copy import receive_all
from perdure.cli.jobs.enter.stream import StreamEnded, open_stream, raise_if_last
from perdure.sdk.connection.client import ApiError, Client

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def output(client: Client, name: str, *argv: str) -> bytes:
    received: list[bytes] = []
    stream = open_stream(client, name, "exec", argv=list(argv))
    with suppress(StreamEnded):
        receive_all(stream.ws, received.append, lambda frame: raise_if_last(frame, client.clean))
    stream.ws.close()
    return b"".join(data[1:] for data in received)


def test_stream__finds_the_node_behind_a_balancer(several: StartCluster) -> None:
    cluster = several("a", "b", "c")
    job = cluster.submit("sleep 600")
    cluster.until_status(job, "RUNNING")
    for number in range(6):
        assert output(cluster.client, f"job-{job}", "echo", str(number)) == f"{number}\n".encode()


def test_stream__through_a_controller_without_the_node_is_one_clear_error(several: StartCluster) -> None:
    cluster = several("a", "b")
    job = cluster.submit("sleep 600")
    cluster.until_status(job, "RUNNING")
    holder = cluster.until(lambda: cluster.node_connection(job), "the node's connection")
    other = "b" if holder == "a" else "a"
    with pytest.raises(ApiError, match="connected to another controller") as error:
        open_stream(cluster.client_of(other), f"job-{job}", "exec", argv=["true"])
    assert error.value.status == 421
    assert error.value.fix is not None
    assert "load balancer" in error.value.fix
