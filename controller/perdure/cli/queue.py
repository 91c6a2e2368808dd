"""`perdure jobs queue`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import click

from perdure.cli import table, text
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.table import Column
from perdure.recovery.statuses import Status
from perdure.sdk import records

REFRESH_S = 2.0
WAITS_SHOWN = 3
WAITING = (Status.PENDING, Status.STARTING, Status.RECOVERING)
ALIVE = (Status.RUNNING, Status.RECOVERING, Status.STARTING, Status.PENDING, Status.CANCELLING)
COLUMNS = (
    Column("ID"),
    Column("TASK", drop=6),
    Column("NAME", least=8),
    Column("RESOURCES", least=10, drop=5),
    Column("SUBMITTED", drop=3),
    Column("TOT. DURATION", drop=4),
    Column("JOB DURATION", drop=2),
    Column("#RECOVERIES", right=True, drop=2),
    Column("COST (SAVED)", drop=1),
    Column("STATUS"),
    Column("WHERE", least=12, keep_end=True),
)
NARROW = {"TOT. DURATION": "TOTAL", "JOB DURATION": "RAN", "#RECOVERIES": "#REC"}
NARROW_BELOW = 132


@click.command(
    epilog="""\b
Examples:
  perdure jobs queue
  perdure jobs queue --watch --skip-finished
  perdure jobs queue -s RUNNING,RECOVERING -n bert
  perdure jobs queue -n 'train-1234*'    quoted, so that the shell leaves the pattern alone
  perdure jobs queue -a -o json | jq '.[] | select(.cost_usd > 10) | .job_id'
"""
)
@click.option("-a", "--all", "everything", is_flag=True, help="Every job there ever was.")
@click.option("-l", "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--skip-finished", is_flag=True, help="Only jobs that have not ended.")
@click.option("-s", "--status", "statuses", metavar="STATUS[,…]", multiple=True, help="Only these statuses.")
@click.option("-n", "--name", help="Only jobs of this name, or whose names match a pattern with * ? or [a-z].")
@click.option("-w", "--watch", is_flag=True, help="Keep the table up to date until Ctrl-C.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def queue(
    everything: bool,
    limit: int,
    skip_finished: bool,
    statuses: tuple[str, ...],
    name: str | None,
    watch: bool,
    output: str,
) -> None:
    """List jobs, newest first.

    COST is what the job's machines cost so far; in brackets, how much less that is than on-demand machines would have
    cost. RAN (or JOB DURATION) is the time in which the job's command ran.
    """
    from perdure.cli.connect import to_controller

    wanted = _statuses(statuses)
    client = to_controller()

    def pages() -> Iterator[records.JobPage]:
        if everything:
            return client.job_pages(skip_finished=skip_finished, statuses=wanted, name=name)
        return iter([client.jobs(limit=limit, skip_finished=skip_finished, statuses=wanted, name=name)])

    def drawn() -> Iterator[list[str]]:
        return blocks(pages(), width=table.screen_width(), limit=None if everything else limit)

    if output == "json":
        _print_json(pages())
    elif watch:
        from perdure.cli.watching import watch as keep_watching

        keep_watching(lambda: (line for block in drawn() for line in block), every_s=REFRESH_S)
    else:
        for block in drawn():
            click.echo("\n".join(block))


def blocks(pages: Iterable[records.JobPage], *, width: int | None, limit: int | None = None) -> Iterator[list[str]]:
    """The summary line and the table, some lines for each page as it comes. `limit`: how many jobs were asked for.

    The first page says how wide the columns are. On a terminal they stay so, else they grow with what comes.
    """
    layout: table.Layout | None = None
    waits = _Waits()
    for page in pages:
        jobs = _by_job(page["jobs"])
        now = text.epoch(page["now"])
        rows = [row for tasks in jobs for row in _rows(tasks, now)]
        block = []
        if layout is None:
            narrow = width is not None and width < NARROW_BELOW
            columns = [_renamed(column) if narrow else column for column in COLUMNS]
            layout = table.fit(columns, rows, width=width)
            block = [_summary(page["counts"]), *([layout.titles()] if rows else [])]
        elif width is None:
            layout = layout.widened(rows)
        block += layout.lines(rows, {"STATUS": text.painted_status})
        waits.note(page["jobs"])
        if limit is not None:
            block += waits.lines()
            if len(jobs) >= limit and page["total"] > len(page["jobs"]):
                block.append(f"The newest {len(jobs)} are shown; for all: perdure jobs queue --all")
        yield block
    if limit is None and (left := waits.lines()):
        yield left


class _Waits:
    """Why jobs wait for a machine: the first few, and whether there are more."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._has_more = False

    def note(self, jobs: Iterable[records.Job]) -> None:
        for job in jobs:
            if job["status"] in WAITING and job["message"]:
                if len(self._shown) == WAITS_SHOWN:
                    self._has_more = True
                    return
                self._shown.append(f"Job {job['job_id']} waits: {job['message']}")

    def lines(self) -> list[str]:
        return self._shown + (["… and others; perdure jobs show ID says why"] if self._has_more else [])


def _print_json(pages: Iterable[records.JobPage]) -> None:
    """One list, page by page, as `json.dumps(…, indent=2)` writes it: which does so ten times as slowly."""
    encoder = json.JSONEncoder(separators=(",\n    ", ": "))  # a job's fields are plain values
    separator = "[\n"
    for page in pages:
        for_each = (f"  {{\n    {encoder.encode(job)[1:-1]}\n  }}" for job in page["jobs"])
        if written := ",\n".join(for_each):
            click.echo(separator + written, nl=False)
            separator = ",\n"
    click.echo("[]" if separator == "[\n" else "\n]")


def _statuses(given: Sequence[str]) -> list[str]:
    names = [name.strip().upper() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in Status.__members__:
            raise Failure(f"--status: there is no status {name}\n  there are: {', '.join(Status)}", EXIT_WRONG_INPUT)
    return names


def _by_job(jobs: Sequence[records.Job]) -> list[list[records.Job]]:
    """The tasks of each job together, in the order of the pipeline; jobs in the order in which they came."""
    groups: dict[int, list[records.Job]] = {}
    for job in jobs:
        groups.setdefault(job["job_id"], []).append(job)
    return [sorted(tasks, key=lambda task: task["task_index"]) for tasks in groups.values()]


def _rows(tasks: Sequence[records.Job], now: float) -> list[list[str]]:
    if len(tasks) == 1 and tasks[0]["num_tasks"] == 1:
        return [_row(tasks[0], str(tasks[0]["job_id"]), "-", tasks[0]["name"], now)]
    whole = _aggregate(tasks)
    rows = [_row(whole, str(whole["job_id"]), "-", whole["name"], now)]
    return rows + [_row(task, " ↳", str(task["task_index"]), task["task_name"] or "-", now) for task in tasks]


def _aggregate(tasks: Sequence[records.Job]) -> records.Job:
    """A pipeline as one row: sums, and the status of the first task that has not succeeded."""
    current = next((task for task in tasks if task["status"] != Status.SUCCEEDED), tasks[-1])
    whole = current.copy()
    whole["resources"] = "-"
    whole["submitted_at"] = min(task["submitted_at"] for task in tasks)
    whole["job_duration_s"] = sum(task["job_duration_s"] for task in tasks)
    whole["total_duration_s"] = sum(task["total_duration_s"] for task in tasks)
    whole["recovery_count"] = sum(task["recovery_count"] for task in tasks)
    whole["cost_usd"] = sum(task["cost_usd"] for task in tasks)
    whole["on_demand_cost_usd"] = sum(task["on_demand_cost_usd"] for task in tasks)
    if current["status"] != Status.SUCCEEDED:
        whole["status"] = f"{current['status']} (task: {current['task_index']})"
    return whole


def _row(job: records.Job, identity: str, task: str, name: str, now: float) -> list[str]:
    return [
        identity,
        task,
        name,
        job["resources"] or "-",
        text.ago(job["submitted_at"], now),
        text.duration(job["total_duration_s"]),
        text.duration(job["job_duration_s"]) if job["started_at"] else "-",
        str(job["recovery_count"]),
        text.cost(job["cost_usd"], job["on_demand_cost_usd"]),
        job["status"],
        text.where(job),
    ]


def _summary(counts: dict[str, int]) -> str:
    alive = [f"{counts[status]} {status}" for status in ALIVE if counts.get(status)]
    return f"In progress tasks: {', '.join(alive)}" if alive else "No in-progress managed jobs."


def _renamed(column: Column) -> Column:
    from dataclasses import replace

    return replace(column, title=NARROW.get(column.title, column.title))
