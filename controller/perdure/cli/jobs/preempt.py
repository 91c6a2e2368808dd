"""`perdure jobs preempt`."""

from __future__ import annotations

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.sdk import jobs

DEFAULT_NOTICE_S = 30.0


@click.command(
    epilog="""\b
Examples:
  perdure jobs preempt 7                 30 seconds of notice: the job saves and moves
  perdure jobs preempt 7 --kill          no notice: it resumes from its last checkpoint
  perdure jobs preempt 7 --node 1 --notice 120
  perdure jobs show 7                    how long the recovery took
"""
)
@click.argument("job_id", type=int, metavar="ID", shell_complete=suggestions.unfinished_job_ids)
@click.option(
    "--node", type=click.IntRange(min=0), default=0, show_default=True, metavar="RANK", help="Rank of the node."
)
@click.option(
    "--notice",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help=f"Time from the notice to the preemption.  [default: {DEFAULT_NOTICE_S:g}]",
)
@click.option("--kill", is_flag=True, help="Preempt without a notice.")
def preempt(job_id: int, node: int, notice: float | None, kill: bool) -> None:
    """Simulate a preemption: have the cloud take a machine away from a running job.

    The interruption is real on clouds that support it, such as the local one. The job recovers as from any other.
    """
    if kill and notice is not None:
        raise Failure("--kill and --notice exclude each other\n  use one of them", EXIT_WRONG_INPUT)
    from perdure.cli.client import connect
    from perdure.cli.output.progress import spinner

    notice_s = None if kill else notice or DEFAULT_NOTICE_S
    client = connect()
    with spinner("Requesting the preemption"):
        machine = jobs.preempt(job_id, node=node, notice_s=notice_s, client=client)
    when = (
        "is being preempted without notice"
        if notice_s is None
        else f"will be preempted in {notice_s:g} s; its notice was sent"
    )
    click.echo(f"Node {node} of job {job_id} ({machine['instance_id']} in {machine['zone']}) {when}.")
