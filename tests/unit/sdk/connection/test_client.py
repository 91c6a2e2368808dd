"""Calls of the controller's API: its errors, and broken connections."""

from __future__ import annotations

import http.server
import io
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from perdure.sdk.connection.client import ApiError, Client, ConnectionLost
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.responses import NotAController
from unit.sdk.contract_server import Controller


@pytest.fixture
def other_server(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A server that is not a controller: it sends (status, body) for every request."""
    status, body = request.param

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Client(Endpoint(f"http://127.0.0.1:{server.server_port}", "t"))
        server.shutdown()
        thread.join()


def test_api_error__has_message_place_and_fix(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.plan(None, [{"run": "x", "resources": {"accelerators": "no such gpu"}}])
    error = caught.value
    assert (error.status, error.where, error.fix) == (400, "tasks[0].resources", "perdure check")
    assert str(error) == "tasks[0].resources: no cloud sells this GPU\n  perdure check"


def test_client__reports_a_wrong_token(controller: Controller) -> None:
    with pytest.raises(ApiError, match="rejects this token") as caught:
        Client(Endpoint(controller.url, "wrong")).clouds()
    assert caught.value.status == 401


def test_upload__reports_a_wrong_token_instead_of_a_broken_pipe(controller: Controller) -> None:
    with pytest.raises(ApiError) as caught:
        Client(Endpoint(controller.url, "wrong")).put_upload("0" * 64, io.BytesIO(b"x" * 5_000_000), 5_000_000)
    assert caught.value.status == 401


@pytest.mark.parametrize(
    "other_server",
    [
        (200, b"<html>router</html>"),
        (404, b"<h1>nope</h1>"),
        (404, b'{"detail": "Not Found"}'),
        (200, b"{}"),
        (200, b"3"),
    ],
    indirect=True,
)
def test_client__detects_another_server(other_server: Client) -> None:
    calls: list[Callable[[], object]] = [
        *(other_server.clouds, other_server.jobs, other_server.controller, other_server.gpus),
        lambda: other_server.job(3),
        lambda: next(other_server.job_pages()),
    ]
    for call in calls:
        with pytest.raises(NotAController) as caught:
            call()
        expected = f"the server at {other_server.endpoint.url} is not a perdure controller: it answered "
        assert str(caught.value).startswith(expected)
        assert caught.value.fix == "check PERDURE_ENDPOINT"


@pytest.mark.parametrize("other_server", [(502, b"<h1>Bad Gateway</h1>")], indirect=True)
def test_client__keeps_the_status_of_a_proxy(other_server: Client) -> None:
    with pytest.raises(ApiError, match=r"the controller at http://\S+ answered 502 Bad Gateway: <h1>Bad") as caught:
        other_server.clouds()
    assert caught.value.status == 502


def test_client__reports_that_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(Endpoint(f"http://127.0.0.1:{unused.getsockname()[1]}", "t"))
        with pytest.raises(ConnectionLost, match=r"the controller at http://127\.0\.0\.1:\d+ does not answer"):
            client.clouds()


def test_endpoint__may_have_a_path(controller: Controller) -> None:
    with pytest.raises(ApiError, match="there is no /prefix/api/v1/clouds"):
        Client(Endpoint(controller.url + "/prefix", "user-token")).clouds()


def test_endpoint_repr__hides_the_token(client: Client) -> None:
    assert "user-token" not in repr(client.endpoint)


def test_log_stream__passes_errors_of_its_reader_on(controller: Controller, client: Client) -> None:
    job_id = controller.add("SUCCEEDED", printed=b"x")
    with pytest.raises(BrokenPipeError), client.logs(job_id):
        raise BrokenPipeError("the reader's own")


def test_jobs__are_filtered_by_the_controller(controller: Controller, client: Client) -> None:
    controller.add("SUCCEEDED", name="a")
    running = controller.add("RUNNING", name="b")
    other = controller.add("RUNNING", name="c")
    page = client.jobs(skip_finished=True, name="b")
    assert [job["job_id"] for job in page["jobs"]] == [running]
    page = client.jobs(ids=[running, other], statuses=["RUNNING", "PENDING"], limit=1)
    assert [job["job_id"] for job in page["jobs"]] == [other]
    assert page["total"] == 3
    assert [job["job_id"] for job in client.jobs(before=other)["jobs"]] == [running, running - 1]


def test_client__waits_for_a_busy_controller(controller: Controller, client: Client) -> None:
    controller.busy = 2
    submitted = client.submit("x", [{"run": "true"}], user="ada", key="k")
    assert controller.busy == 0
    assert [call[2]["key"] for call in controller.calls if call[:2] == ("POST", "/api/v1/jobs")] == ["k"] * 3
    assert len(controller.jobs) == 1
    assert submitted["job_id"] in controller.jobs


def test_client__gives_up_a_controller_that_stays_busy(
    controller: Controller, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.sdk.connection.client.BUSY_TIMEOUT_S", 0.2)
    controller.busy = 1000
    with pytest.raises(ApiError, match="fallen behind") as caught:
        client.submit("x", [{"run": "true"}], user="ada", key="k")
    assert (caught.value.status, caught.value.retry_after_s) == (503, 0.0)
    assert controller.jobs == {}
