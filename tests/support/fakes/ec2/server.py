"""The server: moto's application, and the services in front of it that moto lacks."""

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

from support.fakes.ec2 import account, policy, pricing, responses, security_groups, validation
from support.fakes.ec2.ec2 import IMAGE, Ec2
from support.fakes.ec2.faults import TEXTS, Faults
from support.fakes.ec2.fis import ROLE, Fis
from support.fakes.ec2.responses import Answer
from support.fakes.instance_processes import Machines
from support.fakes.purchases import Purchase

REGIONS = ("us-east-1", "us-west-2")
KEY_ID, SECRET = "AKIAFAKEEC2", "secret-that-shows-nowhere"
_CREDENTIAL = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")


class FakeEc2:
    """See the package. `folder` is for machines, None to run none. `hidden` is a folder that machines cannot see.

    `make_machines`: makes what runs them (cloud, folder, hidden).
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        hidden: Path | None = None,
        regions: tuple[str, ...] = REGIONS,
        make_machines: Callable[[str, Path, Path], Any] = Machines,
    ) -> None:
        self.faults = Faults()
        self.calls: Counter[str] = Counter()  # "ec2:RunInstances" → how often; throttled and denied ones too
        self.regions = regions
        self.settings: dict[str, Any] = {}  # more of `aws` in config.yaml
        self._machines = make_machines("aws", folder, hidden or folder) if folder else None
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
        """Stop the server, and end all machines."""
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
        """Sections of config.yaml: EC2, and the S3 of this server."""
        aws = {"endpoint_url": self.url, "regions": list(self.regions), "fis_role": ROLE, **self.settings}
        return f"aws: {json.dumps(aws)}\ns3: {json.dumps({'endpoint': self.url, 'region': self.regions[0]})}\n"

    @property
    def environ(self) -> dict[str, str]:
        """Credentials, without the AWS configuration of this computer."""
        missing = "/nonexistent"
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_CONFIG_FILE": missing,
            "AWS_SHARED_CREDENTIALS_FILE": missing,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def s3(self) -> Any:
        """A client of the S3 of this server."""
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        return boto3.client("s3", region_name=self.regions[0], endpoint_url=self.url, **keys)

    def sqs(self, region: str) -> Any:
        """A client of the SQS of this server."""
        keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        return boto3.client("sqs", region_name=region, endpoint_url=self.url, **keys)

    # ---- for tests ----

    def purchases(self) -> list[Purchase]:
        """All instances ever launched, in order of launch, in their current state."""
        return self._ec2.purchases()

    def living(self) -> list[Purchase]:
        return [one for one in self.purchases() if one.ended_at is None]

    def interrupt(self, id: str, *, notice_s: float | None = None) -> None:
        """Interrupt a spot instance: after a notice in its metadata, or at once without one."""
        self._ec2.interrupt(id, notice_s)

    def agent_log(self, id: str) -> str:
        """The console output of the machine."""
        return self._machines.agent_log(id) if self._machines else ""

    # ---- HTTP ----

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        credential = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        region, service = credential.groups() if credential else ("", "")
        if service not in ("ec2", "ssm", "fis", "sqs", "pricing", *account.SERVICES):
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if service == "sqs":
            action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
            self.calls[f"sqs:{action}"] += 1
            if (code := self._refusal_of_every_call()) is None:
                return self._moto({**environ, "wsgi.input": io.BytesIO(body)}, start_response)  # type: ignore[no-any-return]
            answer: Answer | None = responses.json_error(code, TEXTS[code])
        elif service == "iam" and not account.simulates(body):  # moto has roles and profiles
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
            raise ConnectionResetError("injected by the test")
        start_response(answer.line, [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))])
        return [answer.body]

    def _answer_ec2(self, region: str, environ: dict[str, Any], form: dict[str, str]) -> Answer | None:
        """Answer a call of EC2. None: the connection breaks."""
        action = form.get("Action", "")
        self.calls[f"ec2:{action}"] += 1
        if _use_up(self.faults.lost_requests, action):
            return None
        if code := self._refusal_of_every_call():
            return responses.error(code, TEXTS[code])
        try:
            parameters = validation.read(action, form)
            if region in self.faults.denied_regions:
                raise validation.Invalid("UnauthorizedOperation", account.denial(f"ec2:{action}", region))
            if f"ec2:{action}" in self.faults.forbid:
                raise validation.Invalid("UnauthorizedOperation", TEXTS["UnauthorizedOperation"])
            if self.faults.policy:
                policy.require_allowed(self.faults.policy, region, action, parameters)
            if parameters.get("DryRun"):
                raise validation.Invalid("DryRunOperation", TEXTS["DryRunOperation"])
            if (groups := security_groups.named(parameters)) and _use_up(self.faults.unseen_groups, action):
                raise validation.Invalid("InvalidGroup.NotFound", f"The security group '{groups[-1]}' does not exist")
            security_groups.require_unused(region, action, parameters)
            answer = self._ec2.answer(region, action, parameters, environ, form)
        except validation.Invalid as invalid:
            answer = responses.error(invalid.code, str(invalid))
        return None if _use_up(self.faults.lost_answers, action) else answer

    def _count(self, call: str) -> None:
        self.calls[call] += 1

    def _interrupt_by_fis(self, id: str) -> None:
        if self._ec2.is_living_spot(id):
            self._ec2.interrupt(id, self.faults.fis_notice_s)

    def _refusal_of_every_call(self) -> str | None:
        if self.faults.throttle > 0:
            self.faults.throttle -= 1
            return "RequestLimitExceeded"
        return self.faults.deny

    def _answer_ssm(self, environ: dict[str, Any], body: bytes) -> Answer:
        """Answer with a public parameter. All of them name the same image."""
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        self.calls[f"ssm:{action}"] += 1
        name = json.loads(body)["Name"]
        if not name.startswith("/aws/service/"):
            return responses.json_error("ParameterNotFound", f"There is no {name}")
        content = {"Parameter": {"Name": name, "Type": "String", "Value": IMAGE}}
        return Answer(200, json.dumps(content).encode(), "application/x-amz-json-1.1")

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
        request = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        chunks, status, _ = run_wsgi_app(self._moto, request, buffered=True)
        return Answer(int(status.split()[0]), b"".join(chunks))


class _Quiet(MotoRequestHandler):
    def log(self, *_: Any) -> None:
        """A test's output is about the test."""


def _use_up(remaining: dict[str, int], action: str) -> bool:
    """Whether a call has the fault, of which one less remains then."""
    if remaining.get(action, 0) <= 0:
        return False
    remaining[action] -= 1
    return True
