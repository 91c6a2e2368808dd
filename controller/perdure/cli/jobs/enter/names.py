"""Names of nodes as users write them: `17`, `job-17`, `job-17-worker1`, and `dev`, `dev-worker1` of a cluster."""

from __future__ import annotations

import re

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure

_NODE = re.compile(r"(.+?)(-worker[0-9]+)?")


def with_rank(name: str, rank: int | None) -> str:
    """The name of the node `rank` of a job or cluster. Raises Failure if `name` names a node already."""
    if not rank:
        return name
    if name != (host := host_of(name)):
        raise Failure(f"--rank: {name} is one node\n  give the name {host}, or leave --rank out", EXIT_WRONG_INPUT)
    return f"{f'job-{name}' if name.isdecimal() else name}-worker{rank}"


def host_of(name: str) -> str:
    """The name of the job or cluster to which the node `name` belongs: `job-17`, `dev`."""
    match = _NODE.fullmatch(name)
    return match[1] if match else name
