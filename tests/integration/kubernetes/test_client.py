"""The client against a server with the real one's semantics: errors, credentials, TLS, connections that break."""

from __future__ import annotations

import json
import ssl
import stat
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.credentials import CredentialsError
from perdure.controller.clouds.kubernetes.api.errors import ApiError, ConnectionBroken, NotConnected
from perdure.controller.clouds.kubernetes.api.kubeconfig import IN_CLUSTER, Kubeconfig
from support.fakes.kube import FakeKube
from support.fakes.kube.cluster import NAMESPACE
from support.fakes.kube.server import TOKEN
from support.helpers.ports import unused_port

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


def client_of(kube: FakeKube, **more: Any) -> ApiClient:
    return ApiClient(Kubeconfig(kube.environ).access(kube.context), **more)


def secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": "b"}}


def test_object__is_created_changed_and_deleted(kube: FakeKube) -> None:
    client = client_of(kube)
    created = client.post(SECRETS, secret("one"))
    assert created["data"] == {"a": "Yg=="}
    changed = client.patch(f"{SECRETS}/one", {"metadata": {"labels": {"x": "y"}}})
    assert changed["metadata"]["labels"] == {"x": "y"}
    assert int(changed["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    client.delete(f"{SECRETS}/one", {"preconditions": {"uid": created["metadata"]["uid"]}})
    with pytest.raises(ApiError) as missing:
        client.get(f"{SECRETS}/one")
    assert (missing.value.status, missing.value.reason) == (404, "NotFound")


def test_error__carries_the_servers_words_and_its_pause(kube: FakeKube) -> None:
    client = client_of(kube)
    client.post(SECRETS, secret("one"))
    with pytest.raises(ApiError, match='secrets "one" already exists') as twice:
        client.post(SECRETS, secret("one"))
    assert (twice.value.status, twice.value.reason) == (409, "AlreadyExists")
    kube.faults.answers["GET secrets"] = [(429, "too many requests")]
    kube.faults.retry_after_s = 5
    with pytest.raises(ApiError, match="too many requests") as throttled:
        client.get(SECRETS)
    assert throttled.value.retry_after_s == 5


def test_lost_request_and_lost_answer__are_of_unknown_effect(kube: FakeKube) -> None:
    client = client_of(kube)
    kube.faults.lost_requests["POST secrets"] = 1
    kube.faults.lost_answers["POST secrets"] = 1
    for name in ("lost", "done"):
        with pytest.raises(ConnectionBroken):
            client.post(SECRETS, secret(name))
    assert [one["metadata"]["name"] for one in kube.secrets()] == ["done"]
    assert client.get(SECRETS)["items"], "the next request opens another connection"


def test_unreachable_and_silent_servers__are_told_apart(kube: FakeKube) -> None:
    kube.faults.silent = True
    with pytest.raises(ConnectionBroken, match="timed out"):
        client_of(kube, timeout_s=0.3).get(SECRETS)
    config = kube.kubeconfig_data()
    config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{unused_port()}"
    kube.kubeconfig.write_text(yaml.safe_dump(config))
    with pytest.raises(NotConnected, match="refused"):
        client_of(kube).get(SECRETS)


def test_idle_connection__that_the_server_has_closed_is_not_used(kube: FakeKube) -> None:
    client = client_of(kube)
    client.get(SECRETS)
    (_, connection), *_ = client._idle
    assert connection.sock is not None
    connection.sock.shutdown(2)
    assert client.get(SECRETS)["items"] == []


# ---- credentials ----


def plugin(folder: Path, body: str) -> str:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def use_plugin(kube: FakeKube, command: str, **more: Any) -> None:
    config = kube.kubeconfig_data()
    exec_config = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": exec_config | more}
    kube.kubeconfig.write_text(yaml.safe_dump(config))


def credential(token: str, **status: str) -> str:
    api = "client.authentication.k8s.io/v1"
    return json.dumps({"apiVersion": api, "kind": "ExecCredential", "status": {"token": token, **status}})


def test_exec_plugin__is_run_once_until_its_token_expires_or_is_rejected(kube: FakeKube, tmp_path: Path) -> None:
    kube.api.tokens.add("second")
    body = f"""
    echo run >> {tmp_path}/runs; test "$REGION" = eu || exit 9; echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info
    if test $(wc -l < {tmp_path}/runs) = 1; then echo '{credential(TOKEN)}'; else echo '{credential("second")}'; fi"""
    use_plugin(kube, plugin(tmp_path, body), env=[{"name": "REGION", "value": "eu"}], provideClusterInfo=True)
    client = client_of(kube)
    client.get(SECRETS)
    client.get(SECRETS)
    assert (tmp_path / "runs").read_text().count("run") == 1
    assert json.loads((tmp_path / "info").read_text())["spec"]["cluster"]["server"] == kube.url
    kube.api.tokens.discard(TOKEN)
    assert client.get(SECRETS)["items"] == [], "the rejected token was renewed"
    assert (tmp_path / "runs").read_text().count("run") == 2


def test_exec_plugin__whose_token_has_expired_runs_again(kube: FakeKube, tmp_path: Path) -> None:
    expired = credential(TOKEN, expirationTimestamp="2020-01-01T00:00:00Z")
    use_plugin(kube, plugin(tmp_path, f"echo run >> {tmp_path}/runs; echo '{expired}'"))
    client = client_of(kube)
    client.get(SECRETS)
    client.get(SECRETS)
    assert (tmp_path / "runs").read_text().count("run") > 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo you must log in >&2; exit 3", "exited with 3: you must log in"),
        ("echo not json", "printed no ExecCredential"),
    ],
)
def test_exec_plugin__that_fails_says_why(kube: FakeKube, tmp_path: Path, body: str, words: str) -> None:
    use_plugin(kube, plugin(tmp_path, body))
    with pytest.raises(CredentialsError, match=words):
        client_of(kube).get(SECRETS)


def test_missing_exec_plugin__shows_its_install_hint(kube: FakeKube) -> None:
    use_plugin(kube, "no-such-plugin", installHint="apt install it")
    with pytest.raises(CredentialsError, match="'no-such-plugin' is not installed: apt install it"):
        client_of(kube).get(SECRETS)


def test_token_file__is_read_again_when_the_server_rejects_the_token(kube: FakeKube, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    config = kube.kubeconfig_data()
    config["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
    kube.kubeconfig.write_text(yaml.safe_dump(config))
    client = client_of(kube)
    client.get(SECRETS)
    kube.api.tokens = {"renewed"}
    (tmp_path / "token").write_text("renewed\n")
    assert client.get(SECRETS)["items"] == []


def test_rejected_token__that_cannot_be_renewed_is_an_error(kube: FakeKube) -> None:
    kube.api.tokens.clear()
    with pytest.raises(ApiError) as rejected:
        client_of(kube).get(SECRETS)
    assert rejected.value.status == 401


# ---- kubeconfig ----


def test_kubeconfig__is_read_again_when_it_changes(kube: FakeKube) -> None:
    config = Kubeconfig(kube.environ)
    before = config.access(kube.context)
    assert config.access(kube.context) is before
    changed = kube.kubeconfig_data()
    changed["contexts"][0]["context"]["namespace"] = "elsewhere"
    kube.kubeconfig.write_text(yaml.safe_dump(changed))
    assert config.access(kube.context).namespace == "elsewhere"


def test_kubeconfigs__are_merged_and_the_first_definition_counts(tmp_path: Path) -> None:
    def write(name: str, server: str, **more: Any) -> Path:
        context = {"name": name, "context": {"cluster": "c", "user": "u"}}
        data = {"contexts": [context], "clusters": [{"name": "c", "cluster": {"server": server}}], **more}
        (tmp_path / name).write_text(yaml.safe_dump(data))
        return tmp_path / name

    first, second = write("one", "https://first"), write("two", "https://second", **{"current-context": "two"})
    config = Kubeconfig({"KUBECONFIG": f"{first}:{second}:{tmp_path / 'missing'}"})
    assert config.contexts() == ("one", "two")
    assert config.current() == "two"
    assert config.access("two").server == "https://first"
    with pytest.raises(CloudRejected, match=r"no context 'three' in .*; it has: one, two"):
        config.access("three")


def test_service_account__is_the_context_of_a_pod(tmp_path: Path) -> None:
    for name, content in (("token", TOKEN), ("namespace", "ns"), ("ca.crt", "pem")):
        (tmp_path / name).write_text(content)
    host = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443", "HOME": str(tmp_path)}
    config = Kubeconfig({**host, "PERDURE_SERVICE_ACCOUNT_DIR": str(tmp_path)})
    assert config.contexts() == (IN_CLUSTER,)
    access = config.access(IN_CLUSTER)
    assert (access.server, access.namespace, access.ca) == ("https://[fd00::1]:6443", "ns", "pem")
    assert access.credentials.headers() == {"Authorization": f"Bearer {TOKEN}"}


def test_kubeconfig__that_is_wrong_names_the_mistake(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("contexts: [{name: a, context: {cluster: b}}]")
    with pytest.raises(CloudRejected, match="context 'a' names the cluster 'b', which is missing"):
        Kubeconfig({}, [str(tmp_path / "config")]).access("a")
    (tmp_path / "config").write_text(": [")
    with pytest.raises(CloudRejected, match="is not YAML"):
        Kubeconfig({}, [str(tmp_path / "config")]).contexts()


# ---- TLS ----


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        certificate: Any = self.connection.getpeercert()  # type: ignore[attr-defined]
        content = json.dumps({"client": str(certificate.get("subject", "")) if certificate else ""}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


def test_tls__verifies_the_server_by_the_clusters_authority_and_presents_a_certificate(tmp_path: Path) -> None:
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("api.internal").configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        client_cert = ca.issue_cert("alice@example.org")
        (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
        (tmp_path / "cert.pem").write_bytes(b"".join(one.bytes() for one in client_cert.cert_chain_pems))
        (tmp_path / "key.pem").write_bytes(client_cert.private_key_pem.bytes())
        cluster = {"server": f"https://127.0.0.1:{server.server_address[1]}", "certificate-authority": "ca.pem"}
        config = {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster | {"tls-server-name": "api.internal"}}],
            "users": [{"name": "u", "user": {"client-certificate": "cert.pem", "client-key": "key.pem"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        answer = ApiClient(Kubeconfig({}, [str(tmp_path / "config")]).access("c")).get("/")
        assert "client" in answer
        config["clusters"] = [{"name": "c", "cluster": cluster}]
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        with pytest.raises(NotConnected, match="certificate"):
            ApiClient(Kubeconfig({}, [str(tmp_path / "config")]).access("c")).get("/")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
