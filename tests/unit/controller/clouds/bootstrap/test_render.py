"""The first program of a machine, as it is sent."""

from __future__ import annotations

import ast
import json
import socket
import threading
from dataclasses import asdict

import pytest

from perdure.controller.clouds.aws.machines import launch_request as aws
from perdure.controller.clouds.base.protocol import Bootstrap
from perdure.controller.clouds.bootstrap.boot import read_rank
from perdure.controller.clouds.bootstrap.render import RankSource, render_boot_program
from perdure.controller.clouds.gcp.machines import launch_request as gcp
from perdure.controller.clouds.local.machine.metadata import HttpConnection, Metadata
from support.fakes.gce_metadata import GceMetadata

MAX_BYTES = 16 * 1024  # EC2's limit, before encoding
ENDPOINT = 'http://[::1]:1/"\\'


@pytest.mark.parametrize("rank", [3, aws.RANK_SOURCE, gcp.RANK_SOURCE], ids=["number", "aws", "gcp"])
def test_render_boot_program__is_small_and_runs_on_old_python(rank: int | RankSource) -> None:
    text = render_boot_program(Bootstrap(ENDPOINT, "attempt-token", {"agent": "ab" * 32, "rclone": "cd" * 32}), rank)
    assert text.startswith("#!/usr/bin/env python3\n")
    assert len(text.encode()) < MAX_BYTES * 0.6
    program = ast.parse(text, feature_version=(3, 9))
    (settings,) = [
        ast.literal_eval(node.value)
        for node in program.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SETTINGS"
    ]
    source = settings.pop("PERDURE_RANK_FROM", None)
    assert (source is not None) == isinstance(rank, RankSource)
    expected = {"PERDURE_ENDPOINT": ENDPOINT, "PERDURE_TOKEN": "attempt-token", "PERDURE_AGENT": "ab" * 32}
    assert settings == expected | ({} if source else {"PERDURE_RANK": "3"})


def test_read_rank__is_the_end_of_a_name_in_google_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    with GceMetadata({"instance/name": "perdure-pd-0a1b-7-0-2-13"}) as metadata:
        monkeypatch.setenv("PERDURE_METADATA_ENDPOINT", metadata.endpoint)
        assert read_rank(json.dumps(asdict(gcp.RANK_SOURCE))) == "13"


def test_read_rank__fetches_a_token_first_in_ec2(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        metadata = Metadata({"ami-launch-index": "7"})
        threading.Thread(target=serve, args=(server, metadata, 2), daemon=True).start()
        monkeypatch.setenv("PERDURE_METADATA_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert read_rank(json.dumps(asdict(aws.RANK_SOURCE))) == "7"


def serve(server: socket.socket, metadata: Metadata, count: int) -> None:
    """Serve IMDSv2 to `count` clients, one after the other."""
    for _ in range(count):
        client, _ = server.accept()
        with client:
            client.sendall(HttpConnection(metadata).feed(client.recv(65536), 0.0))
