"""Names of nodes as users write them."""

from __future__ import annotations

import pytest

from perdure.cli.errors import Failure
from perdure.cli.jobs.enter.names import host_of, with_rank


@pytest.mark.parametrize(
    ("name", "host"),
    [("job-17", "job-17"), ("job-17-worker1", "job-17"), ("dev-worker12", "dev"), ("a-worker", "a-worker")],
)
def test_host__of_a_name(name: str, host: str) -> None:
    assert host_of(name) == host


@pytest.mark.parametrize(
    ("name", "node"), [("17", "job-17-worker2"), ("job-17", "job-17-worker2"), ("dev", "dev-worker2")]
)
def test_rank__of_a_job_or_a_cluster(name: str, node: str) -> None:
    assert with_rank(name, 2) == node
    assert with_rank(name, 0) == with_rank(name, None) == name


def test_rank__of_a_single_node_is_rejected() -> None:
    with pytest.raises(Failure, match="give the name dev"):
        with_rank("dev-worker1", 2)
