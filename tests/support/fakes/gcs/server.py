"""The server: it checks callers and requests, and transfers contents."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from support.fakes import google_account
from support.fakes.gcs.buckets import Buckets
from support.fakes.gcs.tokens import Tokens
from support.fakes.google_discovery import Call, Discovery, Invalid

PROJECT = "perdure-storage"
_STORAGE = Discovery("storage", "v1")
_DESTINATION = {"objects.compose": "destinationBucket", "objects.copy": "destinationBucket"}
_DESTINATION["objects.rewrite"] = "destinationBucket"
_NAMES = ("destinationObject", "object", "prefix", "name")  # of what a call works on


@dataclass
class _Upload:
    """A resumable upload that has not completed."""

    call: Call
    content: bytes = b""


@dataclass
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""


class FakeGcs:
    """See the package. `folder` gets the key file of the account. `port` 0 stands for a free one."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.calls: Counter[str] = Counter()  # "objects.insert" → how often; refused ones too
        self.wrong_answers: list[str] = []  # responses that Google cannot give: errors of this fake
        self.tokens = Tokens(PROJECT)
        self.key_file = folder / "gcs-key.json"
        self._going = threading.Event()
        self._going.set()
        self._uploads: dict[str, _Upload] = {}
        self._server = _Server(self, port)
        self.state = Buckets(lambda: self.url)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self.key_file.write_text(json.dumps(google_account.key_file(PROJECT, f"{self.url}/token")))
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.resume()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert not self.wrong_answers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    # ---- for tests ----

    def objects(self, bucket: str) -> dict[str, bytes]:
        with self.state.lock:
            return {name: stored.content for name, stored in self.state.bucket(bucket).objects.items()}

    def make(self, bucket: str, *, uniform: bool = True) -> None:
        settings = {"uniformBucketLevelAccess": {"enabled": uniform}}
        self.state.answer(Call("buckets.insert", {}, {"name": bucket, "iamConfiguration": settings}))

    def put(self, bucket: str, name: str, content: bytes) -> None:
        self.state.insert(Call("objects.insert", {"bucket": bucket, "name": name}, {}), content)

    def remove(self, bucket: str) -> None:
        with self.state.lock:
            del self.state.buckets[bucket]

    def pause(self) -> None:
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    # ---- HTTP ----

    def serve(self, http_method: str, target: str, headers: Any, body: bytes) -> _Answer:
        self._going.wait()
        url = urlsplit(target)
        query = dict(parse_qsl(url.query))
        try:
            if url.path == "/v1/token":
                return _json(200, self.tokens.exchange(body))
            if "upload_id" in query:
                return self._continue(query["upload_id"], headers, body)
            is_upload, path = url.path.startswith("/upload/"), re.sub("^/(up|down)load/", "/", url.path)
            resource, content = _parts(query.get("uploadType", ""), headers, body) if is_upload else (body, b"")
            call = _STORAGE.read(http_method, path, query, resource)
            self.calls[call.method] += 1
            self._require(call, headers.get("Authorization", ""))
            if is_upload and query["uploadType"] == "resumable":
                return self._begin(call, target)
            if call.method == "objects.get" and query.get("alt") == "media":
                return _content(self.state.object(call).content, headers.get("Range"))
            return self._checked(call, self.state.insert(call, content) if is_upload else self.state.answer(call))
        except Invalid as invalid:
            one = {"message": str(invalid), "domain": "global", "reason": invalid.reason}
            error = {"error": {"code": invalid.status, "message": str(invalid), "errors": [one]}}
            return _json(invalid.status, error)

    def _require(self, call: Call, authorization: str) -> None:
        bucket = call.parameters.get(_DESTINATION.get(call.method, "bucket"), "")
        known = self.state.buckets.get(bucket)
        parameters = {**call.body, **call.parameters}
        name = next((str(parameters[key]) for key in _NAMES if parameters.get(key)), "")
        self.tokens.require(authorization, call.method, bucket, name, is_uniform=known is None or known.is_uniform)

    def _begin(self, call: Call, target: str) -> _Answer:
        self.state.bucket(call.parameters["bucket"])
        upload = secrets.token_hex(8)
        self._uploads[upload] = _Upload(call)
        return _Answer(200, {"Location": f"{self.url}{target}&upload_id={upload}"})

    def _continue(self, upload: str, headers: Any, body: bytes) -> _Answer:
        """A part of a resumable upload: `Content-Range: bytes 0-9/*`, with the size in the last one."""
        one = self._uploads[upload]
        whole = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", headers.get("Content-Range", ""))
        if whole is None or (whole[1] is not None and int(whole[1]) > len(one.content)):
            raise Invalid(400, "invalid", f"Content-Range: {headers.get('Content-Range')}")
        if whole[1] is not None:
            one.content = one.content[: int(whole[1])] + body
        if whole[3] != "*" and len(one.content) == int(whole[3]):
            del self._uploads[upload]
            return self._checked(one.call, self.state.insert(one.call, one.content))
        received = {"Range": f"bytes=0-{len(one.content) - 1}"} if one.content else {}
        if headers.get("X-GUploader-No-308") == "yes":
            return _Answer(200, {**received, "X-Http-Status-Code-Override": "308"})
        return _Answer(308, received)

    def _checked(self, call: Call, answer: dict[str, Any]) -> _Answer:
        try:
            _STORAGE.check_answer(call, answer)
        except Invalid as wrong:
            self.wrong_answers.append(f"{call.method}: {wrong}")
        return _json(200, answer) if answer else _Answer(204, {})


def _json(status: int, body: object) -> _Answer:
    return _Answer(status, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(body).encode())


def _parts(kind: str, headers: Any, body: bytes) -> tuple[bytes, bytes]:
    """(the resource of the object, its content)"""
    if kind == "resumable":
        return body, b""
    if kind == "media":
        return b"", body
    boundary = re.search(r'boundary="?([^";]+)', headers["Content-Type"])
    assert boundary is not None, headers["Content-Type"]
    pieces = body.split(b"--" + boundary[1].encode())
    resource, content = (piece.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n") for piece in pieces[1:3])
    return resource, content


def _content(content: bytes, requested_range: str | None) -> _Answer:
    headers = {"Content-Type": "application/octet-stream"}
    part = re.fullmatch(r"bytes=(\d*)-(\d*)", requested_range or "")
    if part is None:
        return _Answer(200, headers, content)
    start = int(part[1]) if part[1] else max(len(content) - int(part[2]), 0)
    end = min(int(part[2]) if part[1] and part[2] else len(content) - 1, len(content) - 1)
    if start > end:
        raise Invalid(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    return _Answer(206, {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}, content[start : end + 1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, gcs: FakeGcs, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.gcs = gcs

    def handle_error(self, *_: Any) -> None:
        """Tests kill callers in the middle of a call: that is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        answer = self.server.gcs.serve(self.command, self.path, self.headers, self._body())
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""
