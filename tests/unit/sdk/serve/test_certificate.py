"""What cannot be served as the certificate of an endpoint, and where the user is told that it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.security.certificates import generate_self_signed
from perdure.sdk import Dag, Task, serve
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.serve import certificate
from perdure.sdk.serve.certificate import CERT, KEY, InvalidCertificate
from perdure.sdk.spec.problems import TaskError

YAML = """\
service:
  readiness_probe: /
  tls:
    keyfile: key.pem
    certfile: cert.pem
resources: {ports: 8080}
run: serve
"""


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two keys with their certificates, and the first key with a password."""
    folder = tmp_path_factory.mktemp("pems")
    for name in ("a", "b"):
        generate_self_signed(folder / f"{name}.cert", folder / f"{name}.key", names=("x",), clock=ManualClock())
    key = serialization.load_pem_private_key((folder / "a.key").read_bytes(), None)
    sealed = serialization.BestAvailableEncryption(b"password")
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
    return {path.name: path.read_text() for path in folder.iterdir()} | {"encrypted": text.decode()}


def broken(pem: str) -> str:
    """A PEM whose first line is damaged."""
    first, second, rest = pem.split("\n", 2)
    return f"{first}\n{second[::-1]}\n{rest}"


def test_check__accepts_a_key_with_its_certificates(pems: dict[str, str]) -> None:
    certificate.check(pems["a.key"], pems["a.cert"])
    certificate.check(pems["a.key"], pems["a.cert"] + pems["b.cert"])
    certificate.check(pems["a.key"], f"subject: O = Größe\n{pems['a.cert']}")


def test_check__says_which_file_is_wrong(pems: dict[str, str]) -> None:
    wrong = {
        ("no key", pems["a.cert"]): (KEY, "no private key"),
        (pems["a.key"], "no certificate"): (CERT, "no certificate"),
        (pems["a.cert"], pems["a.key"]): (CERT, "no certificate"),
        (pems["a.key"], broken(pems["a.cert"])): (CERT, "cannot be read"),
        (pems["a.key"], pems["a.cert"] + broken(pems["b.cert"])): (CERT, "cannot be read"),
        (broken(pems["a.key"]), pems["a.cert"]): (KEY, "cannot be used"),
        (pems["b.key"], pems["a.cert"]): (KEY, "does not belong"),
        (pems["a.key"], pems["a.cert"] + "\ud800"): (CERT, "cannot be read"),
        (pems["a.key"] + "\ud800", pems["a.cert"]): (KEY, "cannot be used"),
        (pems["encrypted"], pems["a.cert"]): (KEY, "encrypted"),
    }
    for (key, cert), (field, text) in wrong.items():
        with pytest.raises(InvalidCertificate, match=text) as caught:
            certificate.check(key, cert)
        assert caught.value.field == field


@pytest.mark.parametrize("submit", ["up", "update"])
def test_submission__names_the_file_and_line_of_a_wrong_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pems: dict[str, str], submit: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("service.yaml").write_text(YAML)
    nobody = Client(Endpoint("http://127.0.0.1:9", "token"))  # nothing is sent

    def problem() -> str:
        with pytest.raises(TaskError) as caught:
            getattr(serve, submit)(Dag.from_yaml("service.yaml"), "model", client=nobody)
        return str(caught.value)

    assert problem().startswith("service.yaml:4: service.tls.keyfile: 'key.pem': No such file or directory")
    Path("key.pem").write_text(pems["a.key"])
    Path("cert.pem").write_bytes(b"\xff\xfe")
    assert problem().startswith("service.yaml:5: service.tls.certfile: 'cert.pem' is not text")
    Path("cert.pem").write_text(pems["b.cert"])
    assert problem().startswith("service.yaml:4: service.tls.keyfile: 'key.pem': its key does not belong")
    task = Task.from_yaml_config({"service": {"tls": {"keyfile": "k", "certfile": "c"}, "readiness_probe": "/"}})
    with pytest.raises(TaskError, match=r"service\.tls\.keyfile: 'k': No such file"):
        serve.up(task, client=nobody)
