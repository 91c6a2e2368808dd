"""`perdure jobs preempt`."""

from __future__ import annotations

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.sdk import jobs

DEFAULT_NOTICE_S = 30.0


@click.command(
    epilog="""\b
Examples:
  perdure jobs preempt 7                 with 30 seconds of notice: the job saves, and moves
  perdure jobs preempt 7 --kill          with none: it goes on from its last checkpoint
  perdure jobs preempt 7 --node 1 --notice 120
  perdure jobs show 7                    how long the recovery took
"""
)
@click.argument("job_id", type=int, metavar="ID")
@click.option("--node", type=click.IntRange(min=0), default=0, show_default=True, metavar="RANK", help="Which machine.")
@click.option(
    "--notice",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help=f"Time between the cloud's notice and the end.  [default: {DEFAULT_NOTICE_S:g}]",
)
@click.option("--kill", is_flag=True, help="Without a notice, as the worst of interruptions come.")
def preempt(job_id: int, node: int, notice: float | None, kill: bool) -> None:
    """Rehearse an interruption: have the cloud take a machine of a running job.

    It is the real thing on clouds that can do it (the local one can), and the job must survive it.
    """
    if kill and notice is not None:
        raise Failure("--kill and --notice were both given\n  give one of them", EXIT_WRONG_INPUT)
    from perdure.cli.connect import to_controller
    from perdure.cli.progress import working

    notice_s = None if kill else notice or DEFAULT_NOTICE_S
    client = to_controller()
    with working("Asking the cloud"):
        taken = jobs.preempt(job_id, node=node, notice_s=notice_s, client=client)
    when = "is taken away now" if notice_s is None else f"is taken away in {notice_s:g} s; its notice is given"
    click.echo(f"Node {node} of job {job_id} ({taken['instance_id']} in {taken['zone']}) {when}.")
