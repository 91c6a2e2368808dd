"""Jobs with buckets on a controller whose S3 is a local server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.storage.s3_server import KEY_ID, SECRET, S3Server
from e2e.storage.stored_jobs import Jobs
from perdure.agent.storage.fuse import fuse_problem
from support.helpers.controllers import Controller, ControllerOn
from support.helpers.ports import unused_port

# Certificates in this machine's environment must not affect a server without TLS.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CA_BUNDLE": "/etc/ssl/none.crt"}


@pytest.fixture(autouse=True)
def _fuse_or_skip(request: pytest.FixtureRequest) -> None:
    problem = fuse_problem() if request.node.get_closest_marker("fuse") else None
    if problem:
        pytest.skip(problem)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(unused_port(), tmp_path_factory.mktemp("s3") / "moto.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def controller(
    s3: S3Server, tmp_path_factory: pytest.TempPathFactory, controller_on: ControllerOn
) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(f"s3: {{endpoint: '{s3.endpoint}', region: us-east-1}}\n")
    with controller_on(home, environ=CREDENTIALS) as one:
        yield one


@pytest.fixture(scope="module")
def credentials() -> dict[str, str]:
    """The daemon's environment variables for S3."""
    return CREDENTIALS
