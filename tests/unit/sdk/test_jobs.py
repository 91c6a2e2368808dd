"""The functions for scripts: launch, wait, cancel, list."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perdure.sdk import get, jobs, stream_and_get
from perdure.sdk.connection.client import PAGE_SIZE, ApiError, Client, ConnectionLost
from perdure.sdk.dag import Dag
from perdure.sdk.spec.problems import TaskError
from perdure.sdk.task import Task
from support.helpers.timing import scaled
from unit.sdk.contract_server import ROUTES, Controller, Handler

T = TypeVar("T")


ALL = b"".join(b"line %d of many\n" % number for number in range(2000))


def in_thread(call: Callable[[], T]) -> tuple[threading.Thread, list[T]]:
    """Run `call` beside the test; returns (thread, results), where results gets what it returned."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def test_launch__uploads_files_and_submits(tmp_path: Path, controller: Controller, client: Client) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "train.py").write_text("print()")
    launched = jobs.launch(Task("bert", run="python train.py", workdir=str(tmp_path / "w")), client=client, user="ada")
    assert (launched.job_id, launched.name) == (1, "bert")
    assert launched.task_ids == (controller.jobs[1][0]["task_id"],)
    assert controller.configs[1][0]["workdir"]["upload"] in controller.uploads
    submission = controller.called("POST /api/v1/jobs")[0][2]
    assert submission["user"] == "ada"


def test_results__are_those_that_requests_of_clusters_would_return(controller: Controller, client: Client) -> None:
    launched = stream_and_get(jobs.launch(Task(run="true"), client=client))
    assert launched.job_id == 1
    assert get(jobs.cancel(job_ids=[1], client=client))["cancelled"] == [1]
    assert get(jobs.queue(refresh=True, client=client))["jobs"][0]["job_id"] == 1


def test_launch__pipeline(controller: Controller, client: Client) -> None:
    with Dag("nightly") as dag:
        Task("a", run="true") >> Task("b", run="true")
    launched = jobs.launch(dag, client=client)
    assert launched.name == "nightly"
    assert [task["name"] for task in controller.configs[launched.job_id]] == ["a", "b"]


def test_launch__missing_files_send_nothing(controller: Controller, client: Client) -> None:
    with pytest.raises(TaskError, match="does not exist"):
        jobs.launch(Task(run="true", workdir="/no/such/folder"), client=client)
    assert controller.calls == []


def test_launch__unsupported_field_sends_nothing(controller: Controller, client: Client) -> None:
    task = Task(run="true", volumes={"/data": "v"})
    for call in (jobs.launch, jobs.plan):
        with pytest.raises(TaskError, match=r"^volumes: it is not mounted.*to launch without it: --ignore volumes$"):
            call(task, client=client)
    with pytest.raises(TaskError, match=r"unknown field 'volume'; did you mean 'volumes'\?"):
        jobs.launch(task, client=client, ignore=["volume"])
    assert controller.calls == []


def test_launch__ignores_a_field_that_the_caller_names(controller: Controller, client: Client) -> None:
    dag = Dag("p", [Task(run="a", volumes={"/data": "v"}), Task(run="b")])
    launched = jobs.launch(dag, client=client, ignore=["volumes", "service"])
    assert ["volumes" in task for task in controller.configs[launched.job_id]] == [False, False]
    assert launched.warnings[0].startswith("volumes: ignored: it is not mounted, so what is written there is lost")
    assert "volumes" in dag.tasks[0].to_yaml_config(), "the caller's task does not change"


class Echo:
    """A controller that returns the warnings of the tasks that it receives, and one of its own."""

    OWN = "resources.disk_size: accepted, but has no effect on local"

    def plan(self, _name, tasks, **_options):
        stated = [warning for task in tasks for warning in Task.from_yaml_config(task).warnings]
        return {"tasks": [], "warnings": [*stated, self.OWN]}

    def submit(self, name, tasks, **_options):
        return {"job_id": 1, "job_ids": [1], "name": name, "task_ids": [], **self.plan(name, tasks)}


def test_warnings__are_each_given_once() -> None:
    text = (
        "run: x\nresources:\n  ports: 80\n  any_of: [{infra: aws}, {infra: gcp, autostop: 5}]\n"
        "config:\n  aws: {vpc_name: v}\n  hooks: [{run: a, events: [stop, down]}]\n"
    )
    named = ["resources.ports", "resources.any_of[1].autostop", "config.aws", "config.hooks[0].events"]
    with jobs.prepare(Task.from_yaml_str(text)) as job:
        for warnings in (job.plan(Echo())["warnings"], job.submit(Echo(), key="k", user="ada").warnings):
            assert sorted(w.split(": ")[1] for w in warnings if w != Echo.OWN) == sorted(named)
            assert list(warnings).count(Echo.OWN) == 1


def test_launch__too_long_name_sends_nothing(controller: Controller, client: Client) -> None:
    for name, task in (("n" * 201, Task(run="true")), (None, Task(name="n" * 201, run="true"))):
        with pytest.raises(TaskError, match=r"^name: has 201 characters; give one of at most 200$"):
            jobs.launch(task, name, client=client)
    assert controller.calls == []
    jobs.launch(Task(run="true"), "n" * 200, client=client)


def test_launch__lost_response_creates_one_job(controller: Controller, client: Client) -> None:
    controller.drop_answers = 2
    launched = jobs.launch(Task("once", run="true"), client=client)
    assert len(controller.called("POST /api/v1/jobs")) == 3
    assert list(controller.jobs) == [launched.job_id]


def test_launch__repeated_key_returns_the_original_job(controller: Controller, client: Client) -> None:
    first = jobs.launch(Task("k", run="true"), key="mine", client=client)
    assert jobs.launch(Task("k", run="true"), key="mine", client=client) == first
    assert jobs.launch(Task("k", run="true"), client=client).job_id != first.job_id


def test_launch__rejected_job_is_not_retried(controller: Controller, client: Client) -> None:
    with pytest.raises(ApiError, match="no cloud sells"):
        jobs.launch(Task(run="echo no such gpu"), client=client)
    assert len(controller.called("POST /api/v1/jobs")) == 1


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["SUCCEEDED"], 0),
        (["FAILED"], 100),
        (["FAILED_SETUP"], 100),
        (["FAILED_NO_RESOURCE"], 100),
        (["CANCELLED"], 103),
        (["SUCCEEDED", "SUCCEEDED"], 0),
        (["SUCCEEDED", "FAILED", "CANCELLED"], 100),
        (["SUCCEEDED", "CANCELLED", "CANCELLED"], 103),
    ],
)
def test_tail_logs__exit_codes_of_ended_jobs(
    controller: Controller, client: Client, statuses: list[str], code: int
) -> None:
    job_id = controller.add(*statuses)
    assert jobs.tail_logs(job_id, output_stream=io.BytesIO(), client=client) == code
    assert jobs.wait(job_id, client=client) == code


@pytest.mark.parametrize("statuses", [["PENDING"], ["RECOVERING"], ["CANCELLING"], ["SUCCEEDED", "RUNNING"]])
def test_tail_logs__exit_codes_of_unfinished_jobs(controller: Controller, client: Client, statuses: list[str]) -> None:
    job_id = controller.add(*statuses, printed=b"so far")
    received = io.BytesIO()
    assert jobs.tail_logs(job_id, follow=False, output_stream=received, client=client) == 101
    assert received.getvalue() == b"so far"
    assert jobs.wait(job_id, timeout_s=0, client=client) == 101


def test_tail_logs__one_task_of_a_pipeline(controller: Controller, client: Client) -> None:
    job_id = controller.add("SUCCEEDED", "RUNNING", printed=b"x")
    controller.jobs[job_id][1]["status"] = "SUCCEEDED"
    controller.jobs[job_id][0]["status"] = "FAILED"
    assert jobs.tail_logs(job_id, task=1, output_stream=io.BytesIO(), client=client) == 0
    assert jobs.tail_logs(job_id, task=0, output_stream=io.BytesIO(), client=client) == 100


def test_jobs__unknown_job(controller: Controller, client: Client) -> None:
    assert jobs.tail_logs(7, output_stream=io.BytesIO(), client=client) == 102
    assert jobs.tail_logs(name="nobody", output_stream=io.BytesIO(), client=client) == 102
    with pytest.raises(jobs.JobNotFound, match="there is no job 7"):
        jobs.get(7, client=client)
    with pytest.raises(jobs.JobNotFound):
        jobs.wait(7, client=client)


def test_tail_logs__defaults_to_the_newest_job(controller: Controller, client: Client) -> None:
    controller.add("SUCCEEDED", name="a", printed=b"old")
    controller.add("SUCCEEDED", name="b", printed=b"new")
    for name, text in ((None, b"new"), ("a", b"old")):
        received = io.BytesIO()
        jobs.tail_logs(name=name, output_stream=received, client=client)
        assert received.getvalue() == text


def test_tail_logs__text_stream_gets_whole_characters(controller: Controller, client: Client) -> None:
    job_id = controller.add("SUCCEEDED", printed="naïve ✓\n".encode())
    controller.cut_log_at = [3, 8]
    received = io.StringIO()
    jobs.tail_logs(job_id, output_stream=received, client=client)
    assert received.getvalue() == "naïve ✓\n"


def test_wait__ends_with_the_job(controller: Controller, client: Client) -> None:
    job_id = controller.add("RUNNING")
    thread, codes = in_thread(lambda: jobs.wait(job_id, poll_s=0.01, client=client))
    controller.wait_for_call(f"GET .*/jobs/{job_id}")
    controller.end(job_id, "CANCELLED")
    thread.join(scaled(20))
    assert codes == [103]


def test_jobs__cancel_and_preempt(controller: Controller, client: Client) -> None:
    running, ended = controller.add("RUNNING"), controller.add("SUCCEEDED")
    answer = jobs.cancel([running, ended, 99], grace_s=5, client=client)
    assert answer == {"cancelled": [running], "finished": [ended], "unknown": [99]}
    body = controller.called("POST /api/v1/jobs/cancel")[0][2]
    assert body == {"ids": [running, ended, 99], "name": None, "all": False, "graceful": True, "grace_s": 5}
    assert jobs.preempt(running, notice_s=10, client=client) == {"instance_id": "i-1", "zone": "us-east-1a"}
    with pytest.raises(ApiError, match="has no machine") as caught:
        jobs.preempt(ended, client=client)
    assert caught.value.status == 409


def test_iter_all__fetches_page_by_page(controller: Controller, client: Client) -> None:
    for number in range(PAGE_SIZE + 2):
        controller.add("SUCCEEDED", name="odd" if number % 2 else "even")
    taken = jobs.iter_all(client=client)
    assert [next(taken)["job_id"] for _ in range(PAGE_SIZE)] == list(range(PAGE_SIZE + 2, 2, -1))
    assert len(controller.called("GET .*/jobs.*")) <= 2, "at most one page ahead"
    assert [job["job_id"] for job in taken] == [2, 1]
    assert [job["job_id"] for job in jobs.iter_all(name="odd", client=client)] == list(range(PAGE_SIZE + 2, 0, -2))


def test_iter_all__repeats_a_lost_page(controller: Controller, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(PAGE_SIZE + 2):
        controller.add("SUCCEEDED")
    lost: list[Handler] = []
    answer = ROUTES["GET", "/jobs"]

    def lose_two(handler: Handler) -> None:
        if "before" not in handler.query or len(lost) == 2:
            return answer(handler)
        lost.append(handler)
        handler.close_connection = True

    monkeypatch.setitem(ROUTES, ("GET", "/jobs"), lose_two)
    assert [job["job_id"] for job in jobs.iter_all(client=client)] == list(range(PAGE_SIZE + 2, 0, -1))
    assert len(lost) == 2


def test_cancel__all_is_of_this_user(client: Client, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_IDS", 2)
    monkeypatch.setenv("USER", "ada")
    for user in ("ada", "bob", "ada", "ada"):
        controller.add("RUNNING", user=user)
    assert sorted(jobs.cancel(all=True, client=client)["cancelled"]) == [1, 3, 4]
    assert [call[2]["ids"] for call in controller.called("POST .*cancel")] == [[4, 3], [1]], (
        "a call accepts so many ids"
    )
    assert jobs.cancel(all_users=True, client=client)["cancelled"] == [1, 2, 3, 4]


def test_jobs__empty_selection_is_no_job(client: Client, controller: Controller) -> None:
    controller.add("RUNNING", name="a")
    assert jobs.cancel([], client=client) == {"cancelled": [], "finished": [], "unknown": []}
    with pytest.raises(ValueError, match="the name is empty"):
        jobs.cancel(name="", client=client)
    assert controller.called("POST .*cancel") == []
    assert jobs.queue(job_ids=[], client=client)["jobs"] == []


@pytest.mark.parametrize("given", [{}, {"job_ids": 1, "all": True}, {"name": "x", "all_users": True}])
def test_cancel__requires_one_selection(client: Client, controller: Controller, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give exactly one of job_ids, name, all and all_users"):
        jobs.cancel(**given, client=client)
    assert controller.called("POST .*") == []


def test_download_logs__of_the_newest_job(client: Client, controller: Controller, tmp_path: Path) -> None:
    controller.add("RUNNING", name="bert", printed=b"so far\n")
    folder = jobs.download_logs(local_dir=tmp_path, client=client)
    assert folder == tmp_path / "1-bert"
    assert (folder / "run.log").read_bytes() == b"so far\n"
    controller.cut_log_at.append(2)
    with pytest.raises(ConnectionLost):
        jobs.download_logs(local_dir=tmp_path, client=client)
    assert (folder / "run.log").read_bytes() == b"so far\n", "what was downloaded earlier stays"
