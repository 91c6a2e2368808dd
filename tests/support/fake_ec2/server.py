"""The server: moto's application behind what moto lacks."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import boto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from moto.sqs.models import sqs_backends
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app

from fake_ec2 import account, answers, pricing, validation
from fake_ec2.answers import Answer
from fake_ec2.ec2 import IMAGE, Ec2
from fake_ec2.faults import TEXTS, Faults
from fake_ec2.fis import ROLE, Fis
from hardware import Machines
from ledger import Bought

REGIONS = ("us-east-1", "us-west-2")
KEY_ID, SECRET = "AKIAFAKEEC2", "secret-that-shows-nowhere"
_CREDENTIAL = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")


class FakeEc2:
    """See the package. `folder`: where machines live, None for an EC2 without any; `hidden`: what they do not see."""

    def __init__(self, folder: Path | None = None, *, hidden: Path | None = None, regions: tuple[str, ...] = REGIONS):
        self.faults = Faults()
        self.calls: Counter[str] = Counter()  # "ec2:RunInstances" → how often; throttled and denied ones too
        self.regions = regions
        self.settings: dict[str, Any] = {}  # more of `aws` in config.yaml
        self._machines = Machines("aws", folder, hidden or folder) if folder else None
        self._ec2 = Ec2(self.faults, self._machines, self._ask_moto, regions)
        self.fis = Fis(self._interrupt_by_fis, self._count)
        self._ec2.role = self.environ
        for backends in (iam_backends, s3_backends, sqs_backends):
            for backend in backends[DEFAULT_ACCOUNT_ID].values():
                backend.reset()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """No machine is left behind."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._machines:
            self._machines.close()

    # ---- for the controller ----

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def config(self) -> str:
        """Sections of config.yaml: EC2, and the S3 that is served here too."""
        aws = {"endpoint_url": self.url, "regions": list(self.regions), "fis_role": ROLE, **self.settings}
        return f"aws: {json.dumps(aws)}\ns3: {json.dumps({'endpoint': self.url, 'region': self.regions[0]})}\n"

    @property
    def environ(self) -> dict[str, str]:
        """Credentials, and nothing of this computer's own that would disturb."""
        nothing = "/nonexistent"
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_CONFIG_FILE": nothing,
            "AWS_SHARED_CREDENTIALS_FILE": nothing,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def s3(self) -> Any:
        """A client of the S3 that is served here."""
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        return boto3.client("s3", region_name=self.regions[0], endpoint_url=self.url, **keys)

    def sqs(self, region: str) -> Any:
        """A client of the SQS that is served here."""
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        return boto3.client("sqs", region_name=region, endpoint_url=self.url, **keys)

    # ---- for tests ----

    def bought(self) -> list[Bought]:
        """All instances that ever were, in order of launch, as they stand now."""
        return self._ec2.bought()

    def living(self) -> list[Bought]:
        return [one for one in self.bought() if one.ended_at is None]

    def interrupt(self, id: str, *, notice_s: float | None = None) -> None:
        """Take a spot instance back: after a notice in its metadata, or at once."""
        self._ec2.interrupt(id, notice_s)

    def agent_log(self, id: str) -> str:
        """What the machine wrote to its console."""
        return self._machines.agent_log(id) if self._machines else ""

    # ---- HTTP ----

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        found = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        region, service = found.groups() if found else ("", "")
        if service not in ("ec2", "ssm", "fis", "sqs", "pricing", *account.SERVICES):
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if service == "sqs":
            action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
            self.calls[f"sqs:{action}"] += 1
            if (code := self._passing_refusal()) is None:
                return self._moto({**environ, "wsgi.input": io.BytesIO(body)}, start_response)  # type: ignore[no-any-return]
            answer: Answer | None = answers.json_error(code, TEXTS[code])
        elif service == "iam" and not account.simulates(body):  # roles, which moto keeps
            self.calls[f"iam:{dict(parse_qsl(body.decode()))['Action']}"] += 1
            return self._moto({**environ, "wsgi.input": io.BytesIO(body)}, start_response)  # type: ignore[no-any-return]
        elif service == "ec2":
            answer = self._answer_ec2(region, environ, dict(parse_qsl(body.decode(), keep_blank_values=True)))
        elif service == "fis":
            answer = self.fis.answer(region, environ["REQUEST_METHOD"], environ["PATH_INFO"], body)
        elif service == "ssm":
            answer = self._answer_ssm(environ, body)
        elif service == "pricing":
            answer = self._answer_pricing(environ, body)
        else:
            answer = self._answer_account(service, region, environ, body)
        if answer is None:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError("as the test wants it")
        start_response(answer.line, [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))])
        return [answer.body]

    def _answer_ec2(self, region: str, environ: dict[str, Any], form: dict[str, str]) -> Answer | None:
        """None: the connection breaks."""
        action = form.get("Action", "")
        self.calls[f"ec2:{action}"] += 1
        if _use_up(self.faults.lost_requests, action):
            return None
        if code := self._passing_refusal():
            return answers.error(code, TEXTS[code])
        try:
            parameters = validation.read(action, form)
            if f"ec2:{action}" in self.faults.forbid:
                raise validation.Invalid("UnauthorizedOperation", TEXTS["UnauthorizedOperation"])
            if parameters.get("DryRun"):
                raise validation.Invalid("DryRunOperation", TEXTS["DryRunOperation"])
            answer = self._ec2.answer(region, action, parameters, environ, form)
        except validation.Invalid as invalid:
            answer = answers.error(invalid.code, str(invalid))
        return None if _use_up(self.faults.lost_answers, action) else answer

    def _count(self, call: str) -> None:
        self.calls[call] += 1

    def _interrupt_by_fis(self, id: str) -> None:
        if self._ec2.takes(id):
            self._ec2.interrupt(id, self.faults.fis_notice_s)

    def _passing_refusal(self) -> str | None:
        if self.faults.throttle > 0:
            self.faults.throttle -= 1
            return "RequestLimitExceeded"
        return self.faults.deny

    def _answer_ssm(self, environ: dict[str, Any], body: bytes) -> Answer:
        """Public parameters: every one names the same image."""
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        self.calls[f"ssm:{action}"] += 1
        name = json.loads(body)["Name"]
        if not name.startswith("/aws/service/"):
            return answers.json_error("ParameterNotFound", f"There is no {name}")
        told = {"Parameter": {"Name": name, "Type": "String", "Value": IMAGE}}
        return Answer(200, json.dumps(told).encode(), "application/x-amz-json-1.1")

    def _answer_pricing(self, environ: dict[str, Any], body: bytes) -> Answer:
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        self.calls[f"pricing:{action}"] += 1
        try:
            return pricing.answer(action, body, self.faults)
        except validation.Invalid as invalid:
            return pricing.error(invalid)

    def _answer_account(self, service: str, region: str, environ: dict[str, Any], body: bytes) -> Answer:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True)) if service != "servicequotas" else {}
        action = form.get("Action") or environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        self.calls[f"{service}:{action}"] += 1
        try:
            return account.answer(service, region, action, form, body, self.faults)
        except validation.Invalid as invalid:
            return account.error(service, invalid)

    def _ask_moto(self, environ: dict[str, Any], form: dict[str, str]) -> Answer:
        body = urlencode(form).encode()
        asked = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        told, status, _ = run_wsgi_app(self._moto, asked, buffered=True)
        return Answer(int(status.split()[0]), b"".join(told))


class _Quiet(MotoRequestHandler):
    def log(self, *_: Any) -> None:
        """A test's output is about the test."""


def _use_up(left: dict[str, int], action: str) -> bool:
    if left.get(action, 0) <= 0:
        return False
    left[action] -= 1
    return True
