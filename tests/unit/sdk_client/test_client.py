"""The client's side of docs/api.md: errors as the controller words them, and connections that break."""

from __future__ import annotations

import http.server
import io
import socket
import threading

import pytest

from perdure.sdk.client import ApiError, Client, ConnectionLost
from perdure.sdk.endpoint import Endpoint


@pytest.fixture
def elsewhere(request):
    """A server that is no controller: it answers everything with (status, body)."""
    status, body = request.param

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Client(Endpoint(f"http://127.0.0.1:{server.server_port}", "t"))
        server.shutdown()
        thread.join()


def test_a_refusal_says_what_where_and_what_to_do(client):
    with pytest.raises(ApiError) as caught:
        client.plan(None, [{"run": "x", "resources": {"accelerators": "no such gpu"}}])
    error = caught.value
    assert (error.status, error.where, error.fix) == (400, "tasks[0].resources", "perdure check")
    assert str(error) == "tasks[0].resources: no cloud sells this GPU\n  perdure check"


def test_a_wrong_token_is_refused(controller):
    with pytest.raises(ApiError, match="does not know this token") as caught:
        Client(Endpoint(controller.url, "wrong")).clouds()
    assert caught.value.status == 401


def test_a_big_upload_with_a_wrong_token_shows_the_refusal_and_not_a_broken_pipe(controller):
    with pytest.raises(ApiError) as caught:
        Client(Endpoint(controller.url, "wrong")).put_upload("0" * 64, io.BytesIO(b"x" * 5_000_000), 5_000_000)
    assert caught.value.status == 401


@pytest.mark.parametrize("elsewhere", [(200, b"<html>router</html>"), (404, b"<h1>nope</h1>")], indirect=True)
def test_something_else_that_answers_is_told_apart(elsewhere):
    with pytest.raises(ApiError) as caught:
        elsewhere.clouds()
    assert "no perdure controller" in str(caught.value) or "404" in str(caught.value)


def test_nobody_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(Endpoint(f"http://127.0.0.1:{unused.getsockname()[1]}", "t"))
        with pytest.raises(ConnectionLost, match="does not answer"):
            client.clouds()


def test_an_endpoint_may_have_a_path(controller):
    with pytest.raises(ApiError, match="there is no /prefix/api/v1/clouds"):
        Client(Endpoint(controller.url + "/prefix", "user-token")).clouds()


def test_the_token_is_not_in_the_endpoints_text(client):
    assert "user-token" not in repr(client.endpoint)


def test_errors_of_whoever_reads_the_log_pass_through(controller, client):
    job_id = controller.add("SUCCEEDED", printed=b"x")
    with pytest.raises(BrokenPipeError), client.logs(job_id):
        raise BrokenPipeError("the reader's own")


def test_jobs_are_filtered_by_the_controller(controller, client):
    controller.add("SUCCEEDED", name="a")
    running = controller.add("RUNNING", name="b")
    other = controller.add("RUNNING", name="c")
    page = client.jobs(skip_finished=True, name="b")
    assert [job["job_id"] for job in page["jobs"]] == [running]
    page = client.jobs(ids=[running, other], statuses=["RUNNING", "PENDING"], limit=1)
    assert [job["job_id"] for job in page["jobs"]] == [other]
    assert page["total"] == 3
    assert [job["job_id"] for job in client.jobs(before=other)["jobs"]] == [running, running - 1]


def test_a_controller_that_asks_for_time_is_given_it(controller, client):
    controller.busy = 2
    answer = client.submit("x", [{"run": "true"}], user="ada", key="k")
    assert controller.busy == 0
    assert [call[2]["key"] for call in controller.calls if call[:2] == ("POST", "/api/v1/jobs")] == ["k"] * 3
    assert len(controller.jobs) == 1
    assert answer["job_id"] in controller.jobs


def test_a_controller_that_never_comes_round_is_told_of(controller, client, monkeypatch):
    monkeypatch.setattr("perdure.sdk.client.BUSY_PATIENCE_S", 0.2)
    controller.busy = 1000
    with pytest.raises(ApiError, match="fallen behind") as caught:
        client.submit("x", [{"run": "true"}], user="ada", key="k")
    assert (caught.value.status, caught.value.retry_after_s) == (503, 0.0)
    assert controller.jobs == {}
