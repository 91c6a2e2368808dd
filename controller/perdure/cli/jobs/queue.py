"""`perdure jobs queue`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output import durations, table, text
from perdure.cli.output.table import Column
from perdure.recovery.statuses import Status
from perdure.sdk.connection import api_types

REFRESH_S = 2.0
DEFAULT_LIMIT = 50
MAX_WAIT_REASONS = 3
WAITING = (Status.PENDING, Status.STARTING, Status.RECOVERING)
UNFINISHED = (Status.RUNNING, Status.RECOVERING, Status.STARTING, Status.PENDING, Status.CANCELLING)
COLUMNS = (
    Column("ID"),
    Column("TASK", drop_rank=6),
    Column("NAME", min_width=8),
    Column("RESOURCES", min_width=10, drop_rank=5),
    Column("SUBMITTED", drop_rank=3),
    Column("TOT. DURATION", drop_rank=4),
    Column("JOB DURATION", drop_rank=2),
    Column("#RECOVERIES", right=True, drop_rank=2),
    Column("COST (SAVED)", drop_rank=1),
    Column("STATUS"),
    Column("WHERE", min_width=12, keep_end=True),
)
USER = Column("USER")
DETAILS = (USER, Column("PRIORITY", right=True), Column("MACHINES"), Column("REASON"))
NARROW_TITLES = {"TOT. DURATION": "TOTAL", "JOB DURATION": "RAN", "#RECOVERIES": "#REC"}
NARROW_BELOW_COLUMNS = 132


@click.command(
    epilog="""\b
Examples:
  perdure jobs queue
  perdure jobs queue --watch --skip-finished
  perdure jobs queue -s RUNNING,RECOVERING -n bert
  perdure jobs queue -n 'train-1234*'    quote the pattern to protect it from the shell
  perdure jobs queue --since 2d --infra aws/us-east-1
  perdure jobs queue -a -o json | jq '.[] | select(.cost_usd > 10) | .job_id'
"""
)
@click.option("-a", "--all", "everything", is_flag=True, help="Show all jobs.")
@click.option(
    "-l", "--limit", type=click.IntRange(min=1), help=f"Show at most this many jobs; {DEFAULT_LIMIT} by default."
)
@click.option("--skip-finished", is_flag=True, help="Hide finished jobs.")
@click.option(
    "-s",
    "--status",
    "statuses",
    metavar="STATUS[,…]",
    multiple=True,
    help="Show only jobs with these statuses.",
    shell_complete=suggestions.statuses,
)
@click.option(
    "-n",
    "--name",
    help="Show only jobs with this name; *, ? and [a-z] are wildcards.",
    shell_complete=suggestions.job_names,
)
@click.option("--since", metavar="TIME", help="Show only jobs submitted since then: 2d, 12h, or 2026-12-01T08:00Z.")
@click.option(
    "--infra",
    metavar="CLOUD[/REGION[/ZONE]]",
    help="Show only jobs whose newest machine is there.",
    shell_complete=suggestions.clouds,
)
@click.option("-u", "--all-users", is_flag=True, help="Add the column USER. Jobs of all users are shown in any case.")
@click.option("-v", "--verbose", is_flag=True, help="Add user, priority, machines and reason; cut nothing.")
@click.option("-w", "--watch", is_flag=True, help="Refresh the table until Ctrl-C.")
@click.option("--each", is_flag=True, help="Show each job of a sweep; by default, a sweep is one row.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
def queue(
    everything: bool,
    limit: int | None,
    skip_finished: bool,
    statuses: tuple[str, ...],
    name: str | None,
    since: str | None,
    infra: str | None,
    all_users: bool,
    verbose: bool,
    watch: bool,
    each: bool,
    output: str,
) -> None:
    """List jobs, newest first.

    COST is the cost of the job's machines so far; the saving compared to on-demand is in parentheses. RAN (or JOB
    DURATION) is how long the job's command ran.
    """
    from perdure.cli.client import connect
    from perdure.cli.jobs import sweep

    if everything and limit is not None:
        raise Failure("--all and --limit exclude each other", EXIT_WRONG_INPUT)
    rows = None if everything else DEFAULT_LIMIT if limit is None else limit
    selected_statuses = _statuses(statuses)
    is_here = _place_filter(infra)
    max_age = _age_filter(since)
    client = connect()
    extra = DETAILS if verbose else (USER,) if all_users else ()

    def pages(rows: int | None) -> Iterator[api_types.JobPage]:
        all_pages = client.job_pages(skip_finished=skip_finished, statuses=selected_statuses, name=name)
        if since is not None or infra is not None:
            return _filtered(all_pages, max_age, is_here, rows)
        if rows is None:
            return all_pages
        return iter([client.jobs(limit=rows, skip_finished=skip_finished, statuses=selected_statuses, name=name)])

    is_filtered = skip_finished or bool(selected_statuses or since or infra)
    none_found = _none_found(name, is_filtered=is_filtered) if name or since or infra else None

    def table_blocks() -> Iterator[list[str]]:
        width = None if verbose else table.screen_width()
        shown = pages(rows) if each else sweep.one_row_each(pages, client, rows)
        return blocks(shown, width=width, limit=rows, none_found=none_found, extra_columns=extra)

    if output == "json":
        _print_json(pages(rows))
    elif watch:
        from perdure.cli.output import live_table

        live_table.watch(lambda: (line for block in table_blocks() for line in block), every_s=REFRESH_S)
    else:
        for block in table_blocks():
            click.echo("\n".join(block))


def blocks(
    pages: Iterable[api_types.JobPage],
    *,
    width: int | None,
    limit: int | None = None,
    none_found: str | None = None,
    extra_columns: Sequence[Column] = (),
) -> Iterator[list[str]]:
    """The summary and the table: one block of lines per page. `limit`: how many jobs were requested; None: all.

    `none_found` replaces the summary if no job was found. The first page determines the width of the columns. In a pipe
    (`width` None) later pages widen them. `extra_columns`: of DETAILS.
    """
    layout: table.Layout | None = None
    wait_reasons = _WaitReasons()
    for page in pages:
        jobs = _by_job(page["jobs"])
        now = text.to_epoch(page["now"])
        rows = [row for tasks in jobs for row in _rows(tasks, now, extra_columns)]
        block = []
        if layout is None:
            narrow = width is not None and width < NARROW_BELOW_COLUMNS
            columns = [_renamed(column) if narrow else column for column in (*COLUMNS, *extra_columns)]
            layout = table.fit(columns, rows, width=width)
            heading = summary(page["counts"], of="" if none_found is None else ", of all jobs")
            block = [heading, layout.titles()] if rows else [none_found or heading]
        elif width is None:
            layout = layout.widened(rows)
        block += layout.lines(rows, {"STATUS": text.colored_status})
        wait_reasons.add(page["jobs"])
        if limit is not None:
            block += wait_reasons.lines()
            if len(jobs) >= limit and page["total"] > len(page["jobs"]):
                block.append(f"Showing the newest {len(jobs)}; to see all: perdure jobs queue --all")
        yield block
    if limit is None and (last_lines := wait_reasons.lines()):
        yield last_lines


class _WaitReasons:
    """Why jobs wait for a machine: the first reasons, and whether there are more."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._has_more = False

    def add(self, jobs: Iterable[api_types.Job]) -> None:
        for job in jobs:
            if job["status"] in WAITING and job["message"]:
                if len(self._shown) == MAX_WAIT_REASONS:
                    self._has_more = True
                    return
                self._shown.append(f"Job {job['job_id']} is waiting: {text.one_line(job['message'])}")

    def lines(self) -> list[str]:
        return self._shown + (["… and others; for the reason: perdure jobs show ID"] if self._has_more else [])


def _print_json(pages: Iterable[api_types.JobPage]) -> None:
    """Print one list, page by page, in the format of `json.dumps(…, indent=2)`, which is ten times slower."""
    encoder = json.JSONEncoder(separators=(",\n    ", ": "))  # a job's fields are plain values
    separator = "[\n"
    for page in pages:
        for_each = (f"  {{\n    {encoder.encode(job)[1:-1]}\n  }}" for job in page["jobs"])
        if written := ",\n".join(for_each):
            click.echo(separator + written, nl=False)
            separator = ",\n"
    click.echo("[]" if separator == "[\n" else "\n]")


def _place_filter(infra: str | None) -> Callable[[api_types.Job], bool]:
    """Whether a job is at a place. Raises `Failure`."""
    if infra is None:
        return lambda _: True
    from perdure.sdk.spec.infra import parts
    from perdure.sdk.spec.problems import InvalidValue

    try:
        wanted = parts(infra)
    except InvalidValue as error:
        raise Failure(f"--infra: {error.message}\n  {error.fix}", EXIT_WRONG_INPUT) from error

    def is_here(job: api_types.Job) -> bool:
        actual = (job["cloud"], job["region"], job["zone"])
        return all(want in (None, have) for want, have in zip(wanted, actual, strict=True))

    return is_here


def _age_filter(since: str | None) -> Callable[[float], float]:
    """A function from now to the earliest submission, both in epoch seconds. Raises `Failure`."""
    if since is None:
        return lambda _: 0.0
    from perdure.sdk.spec.problems import InvalidValue
    from perdure.sdk.spec.values import deadlines

    try:
        with suppress(ValueError):
            begin = datetime.fromisoformat(since).timestamp()
            return lambda _: begin
        age_s = deadlines.seconds(deadlines.parse_duration(since))
    except InvalidValue as error:
        fix = f"give {deadlines.DURATION}, or a moment such as 2026-12-01T08:00Z"
        raise Failure(f"--since: {error.message}\n  {fix}", EXIT_WRONG_INPUT) from error
    return lambda now: now - age_s


def _filtered(
    pages: Iterable[api_types.JobPage],
    earliest: Callable[[float], float],
    is_here: Callable[[api_types.Job], bool],
    limit: int | None,
) -> Iterator[api_types.JobPage]:
    """The pages with only the jobs that were submitted since, and of which a task is at the place; at most `limit`.

    Ids rise with the time of submission, so that no page after an older job is read.
    """
    num_kept = 0
    for page in pages:
        begin = earliest(text.to_epoch(page["now"]))
        kept: list[api_types.Job] = []
        for tasks in _by_job(page["jobs"]):
            is_new = text.to_epoch(tasks[0]["submitted_at"]) >= begin
            if is_new and any(map(is_here, tasks)) and num_kept != limit:
                kept += tasks
                num_kept += 1
        yield {**page, "jobs": kept}
        if num_kept == limit or (page["jobs"] and text.to_epoch(page["jobs"][-1]["submitted_at"]) < begin):
            return


def _none_found(name: str | None, *, is_filtered: bool) -> str:
    if not name:
        return "There is no such job."
    which = "No such job" if is_filtered else "No job"
    return f"{which} has a name that matches {name!r}." if set(name) & set("*?[") else f"{which} is named {name!r}."


def _statuses(given: Sequence[str]) -> list[str]:
    names = [name.strip().upper() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in Status.__members__:
            raise Failure(f"--status: unknown status {name}\n  choose from: {', '.join(Status)}", EXIT_WRONG_INPUT)
    return names


def _by_job(jobs: Sequence[api_types.Job]) -> list[list[api_types.Job]]:
    """The rows grouped by job, tasks in pipeline order; jobs keep their order."""
    groups: dict[int, list[api_types.Job]] = {}
    for job in jobs:
        groups.setdefault(job["job_id"], []).append(job)
    return [sorted(tasks, key=lambda task: task["task_index"]) for tasks in groups.values()]


def _rows(tasks: Sequence[api_types.Job], now: float, extra_columns: Sequence[Column]) -> list[list[str]]:
    shown: list[tuple[api_types.Job, str, str, str, float | None]]
    if len(tasks) == 1 and tasks[0]["num_tasks"] == 1:
        shown = [(tasks[0], str(tasks[0]["job_id"]), "-", tasks[0]["name"], tasks[0]["total_duration_s"])]
    else:
        job, seconds = _aggregate(tasks), durations.of_tasks(tasks)
        shown = [(job, str(job["job_id"]), "-", job["name"], durations.of_job(tasks))]
        for task in tasks:
            name, index = task["task_name"] or "-", task["task_index"]
            shown.append((task, " ↳", str(index), name, seconds[index]))
    return [
        [*_row(job, label, task, name, total_s, now), *(_detail(column, job) for column in extra_columns)]
        for job, label, task, name, total_s in shown
    ]


def _aggregate(tasks: Sequence[api_types.Job]) -> api_types.Job:
    """A pipeline as one row: sums, and the status of the first task that has not succeeded."""
    current = next((task for task in tasks if task["status"] != Status.SUCCEEDED), tasks[-1])
    pipeline = current.copy()
    pipeline["resources"] = "-"
    pipeline["submitted_at"] = min(task["submitted_at"] for task in tasks)
    pipeline["job_duration_s"] = sum(task["job_duration_s"] for task in tasks)
    pipeline["recovery_count"] = sum(task["recovery_count"] for task in tasks)
    pipeline["cost_usd"] = sum(task["cost_usd"] for task in tasks)
    pipeline["on_demand_cost_usd"] = sum(task["on_demand_cost_usd"] for task in tasks)
    if current["status"] != Status.SUCCEEDED:
        pipeline["status"] = f"{current['status']} (task: {current['task_index']})"
    return pipeline


def _row(job: api_types.Job, label: str, task: str, name: str, total_s: float | None, now: float) -> list[str]:
    return [
        label,
        task,
        name,
        job["resources"] or "-",
        text.ago(job["submitted_at"], now),
        text.duration(total_s),
        text.duration(job["job_duration_s"]) if job["started_at"] else "-",
        str(job["recovery_count"]),
        text.cost(job["cost_usd"], job["on_demand_cost_usd"]),
        job["status"],
        text.where(job) + (", kept" if _is_kept(job) else ""),
    ]


def _is_kept(job: api_types.Job) -> bool:
    """Whether the machines of a job that has failed are kept for a look."""
    return (job["cleanup"] or "").startswith("keeping ")


def _detail(column: Column, job: api_types.Job) -> str:
    """The cell of a column of DETAILS."""
    cells = {
        "USER": job["user"],
        "PRIORITY": str(job["priority"]),
        "MACHINES": job["cluster_resources"],
        "REASON": ": ".join(part for part in (job["reason"], job["message"]) if part),
    }
    return cells[column.title] or "-"


def summary(counts: dict[str, int], *, of: str = "") -> str:
    """How many tasks of managed jobs have not ended, by status. `of`: says which, where not all jobs are shown."""
    unfinished = [f"{counts[status]} {status}" for status in UNFINISHED if counts.get(status)]
    return f"In progress tasks{of}: {', '.join(unfinished)}" if unfinished else "No in-progress managed jobs."


def _renamed(column: Column) -> Column:
    from dataclasses import replace

    return replace(column, title=NARROW_TITLES.get(column.title, column.title))
