"""Names of nodes as users write them: `17`, `job-17`, `job-17-worker1`."""

from __future__ import annotations

import re

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure

_JOB = re.compile(r"(?:job-)?([0-9]+)")


def with_rank(name: str, rank: int | None) -> str:
    """The name of the node `rank` of a job. Raises Failure if `name` names a node already."""
    if not rank:
        return name
    match = _JOB.fullmatch(name)
    if match is None:
        raise Failure(f"--rank: {name} is not a job\n  give the ID of a job, or leave --rank out", EXIT_WRONG_INPUT)
    return f"job-{match[1]}-worker{rank}"
