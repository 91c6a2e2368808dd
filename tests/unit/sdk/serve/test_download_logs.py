"""The logs of a service as files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk import serve
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import ClientError
from perdure.sdk.serve import types
from unit.sdk.contract_server import Controller

PATH = "/api/v1/services/model"


def serve_model(controller: Controller, *job_ids: int | None, proxy_log: str = "", **changes: Any) -> None:
    """The service `model`, with a replica for each job."""
    replicas = [{"number": number, "job_id": job_id} for number, job_id in enumerate(job_ids, 1)]
    controller.answers[PATH] = {"name": "model", "service_id": 3, "replicas": replicas, **changes}
    controller.answers[f"{PATH}/proxy-log"] = {"text": proxy_log}


def test_download__asks_for_everything_that_is_kept(client: Client, controller: Controller, tmp_path: Path) -> None:
    serve_model(controller, controller.add("SUCCEEDED", printed=b"one\n"), None, proxy_log="GET /\n")
    folder = serve.download_logs("model", local_dir=tmp_path, client=client)
    assert folder == tmp_path / "service-3-model"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "replica-1.log": "one\n",
        "load-balancer.log": "GET /\n",
    }
    assert controller.called(f"GET {PATH}.all_replicas=1")
    assert controller.called(f"GET {PATH}/proxy-log.tail={types.MAX_PROXY_LINES}")


def test_download__says_where_the_log_of_the_proxy_was_cut(
    client: Client,
    controller: Controller,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(types, "MAX_PROXY_LINES", 2)
    serve_model(controller, proxy_log="GET /b\nGET /c\n")
    folder = serve.download_logs("model", local_dir=tmp_path, client=client)
    note, *lines = (folder / "load-balancer.log").read_text().splitlines()
    assert (note, lines) == ("# The last 2 lines: earlier ones are left out.", ["GET /b", "GET /c"])


def test_download__that_fails_leaves_what_was_downloaded_earlier(
    client: Client, controller: Controller, tmp_path: Path
) -> None:
    """A log that is no longer kept does not end the others."""
    serve_model(
        controller, controller.add("SUCCEEDED", printed=b"one\n"), controller.add("SUCCEEDED", printed=b"two\n")
    )
    folder = serve.download_logs("model", local_dir=tmp_path, client=client)
    del controller.jobs[1]
    controller.logs[2] += b"more\n"
    serve.download_logs("model", local_dir=tmp_path, client=client)
    assert [(folder / f"replica-{number}.log").read_text() for number in (1, 2)] == ["one\n", "two\nmore\n"]
    with pytest.raises(serve.ReplicaNotFound, match="replica 1 of model is no longer kept"):
        serve.download_logs("model", [1], local_dir=tmp_path, client=client)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "/../../../outside"},
        {"service_id": "x/../../../outside"},
        {"replicas": [{"number": "/../../../outside", "job_id": 1}]},
    ],
)
def test_download__writes_to_no_other_folder(
    client: Client, controller: Controller, tmp_path: Path, changes: dict[str, Any]
) -> None:
    inside = tmp_path / "a/b/c"
    serve_model(controller, controller.add("SUCCEEDED", printed=b"one\n"), **changes)
    with contextlib.suppress(ClientError):
        serve.download_logs("model", local_dir=inside, client=client)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(inside)]
    assert written == []
