"""What scripts call: launch once, follow to the end whatever breaks, wait, cancel."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from perdure.sdk import jobs, logs
from perdure.sdk.client import PAGE, ApiError, ConnectionLost
from perdure.sdk.dag import Dag
from perdure.sdk.problems import TaskError
from perdure.sdk.task import Task

ALL = b"".join(b"line %d of many\n" % number for number in range(2000))


def in_thread(call):
    """Run `call` beside the test; returns (thread, results), where results gets what it returned."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def test_launch_sends_files_and_the_job(tmp_path, controller, client):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "train.py").write_text("print()")
    launched = jobs.launch(Task("bert", run="python train.py", workdir=str(tmp_path / "w")), client=client, user="ada")
    assert (launched.job_id, launched.name) == (1, "bert")
    assert launched.task_ids == (controller.jobs[1][0]["task_id"],)
    assert controller.configs[1][0]["workdir"]["upload"] in controller.uploads
    submission = controller.called("POST /api/v1/jobs")[0][2]
    assert submission["user"] == "ada"


def test_launch_of_a_pipeline(controller, client):
    with Dag("nightly") as dag:
        Task("a", run="true") >> Task("b", run="true")
    launched = jobs.launch(dag, client=client)
    assert launched.name == "nightly"
    assert [task["name"] for task in controller.configs[launched.job_id]] == ["a", "b"]


def test_a_task_whose_files_are_missing_reaches_nobody(controller, client):
    with pytest.raises(TaskError, match="does not exist"):
        jobs.launch(Task(run="true", workdir="/no/such/folder"), client=client)
    assert controller.calls == []


def test_a_submission_whose_answer_is_lost_is_one_job(controller, client):
    controller.drop_answers = 2
    launched = jobs.launch(Task("once", run="true"), client=client)
    assert len(controller.called("POST /api/v1/jobs")) == 3
    assert list(controller.jobs) == [launched.job_id]


def test_a_repeated_key_gives_the_first_job_and_no_key_gives_a_new_one(controller, client):
    first = jobs.launch(Task("k", run="true"), key="mine", client=client)
    assert jobs.launch(Task("k", run="true"), key="mine", client=client) == first
    assert jobs.launch(Task("k", run="true"), client=client).job_id != first.job_id


def test_a_refused_job_is_not_tried_again(controller, client):
    with pytest.raises(ApiError, match="no cloud sells"):
        jobs.launch(Task(run="echo no such gpu"), client=client)
    assert len(controller.called("POST /api/v1/jobs")) == 1


def test_the_log_is_whole_though_its_connection_breaks(controller, client):
    job_id = controller.add("SUCCEEDED", printed=ALL)
    controller.cut_log_at = [1, 777, 20_000]
    received, lost = io.BytesIO(), []
    assert jobs.tail_logs(job_id, output_stream=received, on_lost=lost.append, client=client) == 0
    assert received.getvalue() == ALL
    assert controller.cut_log_at == []
    assert len(lost) == 3


def test_the_log_is_followed_while_it_grows(controller, client):
    job_id = controller.add("RUNNING", printed=b"one\n")
    controller.cut_log_at = [6]
    received = io.BytesIO()
    thread, codes = in_thread(lambda: jobs.tail_logs(job_id, output_stream=received, client=client))
    controller.wait_for_call("GET .*/logs.*")
    controller.print(job_id, b"two\n")
    controller.wait_for_call("GET .*/logs.*offset=6.*")
    controller.print(job_id, b"three\n")
    controller.end(job_id, "FAILED")
    thread.join(20)
    assert codes == [100]
    assert received.getvalue() == b"one\ntwo\nthree\n"


def test_a_controller_that_stops_ends_its_streams_but_the_log_is_read_to_its_end(controller, client):
    """The stream ends as if the job had ended; meanwhile, the job prints more and does end."""
    job_id = controller.add("RUNNING", printed=b"one\n")
    controller.close_log_at = [4]
    received = io.BytesIO()

    def write(chunk):
        received.write(chunk)
        if chunk == b"one\n":
            controller.print(job_id, b"two\n")
            controller.end(job_id)

    logs.follow(client, job_id, write)
    assert received.getvalue() == b"one\ntwo\n"


def test_a_tail_goes_on_from_where_it_broke(controller, client):
    job_id = controller.add("SUCCEEDED", printed=ALL)
    controller.cut_log_at = [len(ALL) - 5]
    received = io.BytesIO()
    jobs.tail_logs(job_id, tail=2, output_stream=received, client=client)
    assert received.getvalue() == b"line 1998 of many\nline 1999 of many\n"


def test_a_controller_that_is_started_anew_is_found_where_it_is_then(tmp_path, controller, client):
    """The embedded one: the first is gone for good, the second listens elsewhere and says so in controller.json."""
    import dataclasses
    import json

    from perdure.sdk.client import Client

    home = tmp_path / "home"
    home.mkdir()
    (home / "token").touch(0o600)
    (home / "token").write_text("user-token")
    job_id = controller.add("SUCCEEDED", printed=ALL)
    gone = Client(dataclasses.replace(client.endpoint, url="http://127.0.0.1:1", home=home))
    lost = []

    def restarted(error):
        lost.append(error)
        (home / "controller.json").write_text(json.dumps({"endpoint": controller.url, "pid": 1}))

    received = io.BytesIO()
    assert jobs.tail_logs(job_id, output_stream=received, on_lost=restarted, client=gone) == 0
    assert received.getvalue() == ALL
    assert len(lost) == 1


def test_a_controller_that_stays_away_is_given_up(client, controller):
    import dataclasses

    from perdure.sdk.client import Client

    gone = Client(dataclasses.replace(client.endpoint, url="http://127.0.0.1:1"))
    with pytest.raises(ConnectionLost):
        logs.follow(gone, 1, lambda _: None, give_up_s=0)


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
def test_exit_codes_of_ended_jobs(controller, client, statuses, code):
    job_id = controller.add(*statuses)
    assert jobs.tail_logs(job_id, output_stream=io.BytesIO(), client=client) == code
    assert jobs.wait(job_id, client=client) == code


@pytest.mark.parametrize("statuses", [["PENDING"], ["RECOVERING"], ["CANCELLING"], ["SUCCEEDED", "RUNNING"]])
def test_exit_codes_of_jobs_that_go_on(controller, client, statuses):
    job_id = controller.add(*statuses, printed=b"so far")
    received = io.BytesIO()
    assert jobs.tail_logs(job_id, follow=False, output_stream=received, client=client) == 101
    assert received.getvalue() == b"so far"
    assert jobs.wait(job_id, timeout_s=0, client=client) == 101


def test_one_task_of_a_pipeline_is_followed_to_its_own_end(controller, client):
    job_id = controller.add("SUCCEEDED", "RUNNING", printed=b"x")
    controller.jobs[job_id][1]["status"] = "SUCCEEDED"
    controller.jobs[job_id][0]["status"] = "FAILED"
    assert jobs.tail_logs(job_id, task=1, output_stream=io.BytesIO(), client=client) == 0
    assert jobs.tail_logs(job_id, task=0, output_stream=io.BytesIO(), client=client) == 100


def test_unknown_jobs(controller, client):
    assert jobs.tail_logs(7, output_stream=io.BytesIO(), client=client) == 102
    assert jobs.tail_logs(name="nobody", output_stream=io.BytesIO(), client=client) == 102
    with pytest.raises(jobs.JobNotFound, match="there is no job 7"):
        jobs.get(7, client=client)
    with pytest.raises(jobs.JobNotFound):
        jobs.wait(7, client=client)


def test_without_an_id_the_newest_job_is_followed(controller, client):
    controller.add("SUCCEEDED", name="a", printed=b"old")
    controller.add("SUCCEEDED", name="b", printed=b"new")
    for name, text in ((None, b"new"), ("a", b"old")):
        received = io.BytesIO()
        jobs.tail_logs(name=name, output_stream=received, client=client)
        assert received.getvalue() == text


def test_a_text_stream_gets_text_even_where_a_character_is_cut(controller, client):
    job_id = controller.add("SUCCEEDED", printed="naïve ✓\n".encode())
    controller.cut_log_at = [3, 8]
    received = io.StringIO()
    jobs.tail_logs(job_id, output_stream=received, client=client)
    assert received.getvalue() == "naïve ✓\n"


def test_wait_ends_with_the_job(controller, client):
    job_id = controller.add("RUNNING")
    thread, codes = in_thread(lambda: jobs.wait(job_id, poll_s=0.01, client=client))
    controller.wait_for_call(f"GET .*/jobs/{job_id}")
    controller.end(job_id, "CANCELLED")
    thread.join(20)
    assert codes == [103]


def test_cancel_and_preempt(controller, client):
    running, ended = controller.add("RUNNING"), controller.add("SUCCEEDED")
    answer = jobs.cancel([running, ended, 99], grace_s=5, client=client)
    assert answer == {"cancelled": [running], "finished": [ended], "unknown": [99]}
    body = controller.called("POST /api/v1/jobs/cancel")[0][2]
    assert body == {"ids": [running, ended, 99], "name": None, "all": False, "graceful": True, "grace_s": 5}
    assert jobs.preempt(running, notice_s=10, client=client) == {"instance_id": "i-1", "zone": "us-east-1a"}
    with pytest.raises(ApiError, match="has no machine") as caught:
        jobs.preempt(ended, client=client)
    assert caught.value.status == 409


def test_every_job_comes_page_by_page(controller, client):
    for number in range(PAGE + 2):
        controller.add("SUCCEEDED", name="odd" if number % 2 else "even")
    taken = jobs.every(client=client)
    assert [next(taken)["job_id"] for _ in range(PAGE)] == list(range(PAGE + 2, 2, -1))
    assert len(controller.called("GET .*/jobs.*")) <= 2, "at most one page ahead"
    assert [job["job_id"] for job in taken] == [2, 1]
    assert [job["job_id"] for job in jobs.every(name="odd", client=client)] == list(range(PAGE + 2, 0, -2))


def test_a_page_that_is_lost_is_asked_for_again(controller, client, monkeypatch):
    for _ in range(PAGE + 2):
        controller.add("SUCCEEDED")
    served = sys.modules["perdure_contract_server"].ROUTES
    lost, answer = [], served["GET", "/jobs"]

    def lose_two(handler):
        if "before" not in handler.query or len(lost) == 2:
            return answer(handler)
        lost.append(handler)
        handler.close_connection = True

    monkeypatch.setitem(served, ("GET", "/jobs"), lose_two)
    assert [job["job_id"] for job in jobs.every(client=client)] == list(range(PAGE + 2, 0, -1))
    assert len(lost) == 2
