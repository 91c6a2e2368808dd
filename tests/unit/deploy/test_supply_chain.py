"""The lock files, and what is made from them: installations, the bill of materials, the audit."""

from __future__ import annotations

import hashlib
import http.server
import importlib.metadata
import io
import json
import re
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts import supply_chain
from scripts.supply_chain import LOCKS, Package, audit, bill_of_materials, locked

from perdure.controller.hosting import installer
from support.helpers.controllers import ROOT

RUNTIME, BUILD = LOCKS
EXTRAS = ("controller", "aws", "gcp", "azure", "postgres")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lock(path: Path) -> dict[str, Package]:
    return {canonicalize_name(package.name): package for package in locked(path)}


def required() -> list[Requirement]:
    groups = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in EXTRAS for line in groups[extra])]
    return [Requirement(line) for line in lines]


def test_lock__covers_what_pyproject_requires() -> None:
    """After a change of pyproject.toml: `make lock`."""
    packages = lock(RUNTIME)
    for one in required():
        assert canonicalize_name(one.name) in packages, one
        assert packages[canonicalize_name(one.name)].version in one.specifier, one
    for line in PROJECT["build-system"]["requires"]:
        one = Requirement(line)
        assert lock(BUILD)[canonicalize_name(one.name)].version in one.specifier


def test_lock__covers_what_its_packages_require() -> None:
    packages, missing, seen = lock(RUNTIME), [], set()
    waiting = [(one.name, frozenset(one.extras)) for one in required()]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of a cloud whose SDK is not installed here
        for one in map(Requirement, lines):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append((one.name, frozenset(one.extras)))
                if canonicalize_name(one.name) not in packages:
                    missing.append((name, str(one)))
    assert len(seen) > 30, "the packages are installed, or this test would see nothing"
    assert missing == []


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock__has_a_hash_for_every_package(path: Path) -> None:
    assert [package.name for package in locked(path) if not package.hashes] == []
    assert "://" not in path.read_text(), "it names no index: pip's configuration does"


def test_lock__is_strict_about_its_lines(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text("good==1 \\\n    --hash=sha256:" + "0" * 64 + "\ngit+https://example.org/x\n")
    with pytest.raises(ValueError, match="neither a package nor a hash"):
        locked(tmp_path / "x.lock")


def test_bounds__hold_packages_whose_private_classes_are_subclassed() -> None:
    """Only versions that were tested: a minor version may change what is not public."""
    private = re.compile(r"^from (\w+)\S*\.\w*(?:_impl|\._\w+)\S* import", re.MULTILINE)
    sources = (ROOT / "controller").rglob("*.py")
    used = {match[1] for path in sources for match in private.finditer(path.read_text())}
    assert used == {"uvicorn"}
    (uvicorn,) = (one for one in required() if one.name == "uvicorn")
    assert any(bound.operator == "<" for bound in uvicorn.specifier), uvicorn


def test_installations__accept_locked_files_only() -> None:
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    cloud_init = (ROOT / "deploy/cloud-init/controller.yaml").read_text()
    template = (ROOT / "deploy/terraform/user-data/cloud-config.yaml.tftpl").read_text()
    joined = dockerfile.replace("\\\n", " ")
    for text in (joined, *map(commands, (cloud_init, template))):
        installs = re.findall(r"pip (?:install|wheel|download)[^&\n]*", text)
        assert len(installs) >= 2
        assert [one for one in installs if "--require-hashes" not in one and "--no-deps" not in one] == []
        assert installer.LOCK in text


def commands(text: str) -> str:
    return "\n".join(" ".join(words) for words in yaml.safe_load(text.replace("${", "{"))["runcmd"])


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write a wheel; its SHA-256."""
    info = f"{name}-1.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    (folder / f"{name}-1-py3-none-any.whl").write_bytes(content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
def test_installer__installs_a_dependency_only_with_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Real pip, with a folder instead of an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    digest = wheel(tmp_path, "dependency", {"dependency.py": ""})
    text = f"dependency==1 --hash=sha256:{digest if is_known else '0' * 64}\n"
    wheel(tmp_path, "perdure", {installer.LOCK: text})
    program = tmp_path / "perdure-1-py3-none-any.whl"
    manifest = {"dependencies": "index", "extras": "controller"}
    installation = tmp_path / "installation"
    if is_known:
        installer._install_wheel(str(program), str(installation), manifest)
        assert len(list(installation.glob("venv/lib/*/site-packages/dependency.py"))) == 1
    else:
        with pytest.raises(installer.CannotInstall, match="DO NOT MATCH THE HASHES"):
            installer._install_wheel(str(program), str(installation), manifest)
        assert not (installation / "complete").exists()


def test_bill_of_materials__names_every_package_and_its_hashes() -> None:
    packages = locked(RUNTIME)
    document = bill_of_materials(packages, "1.2")
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    named = {component["purl"]: component for component in document["components"]}
    assert len(named) == len(packages)
    cryptography = next(package for package in packages if package.name == "cryptography")
    component = named[f"pkg:pypi/cryptography@{cryptography.version}"]
    hashes = {entry["content"] for entry in component["externalReferences"][0]["hashes"]}
    assert hashes == set(cryptography.hashes)
    assert set(document["dependencies"][0]["dependsOn"]) == {one["bom-ref"] for one in document["components"]}
    assert document == bill_of_materials(packages, "1.2"), "equal locks give equal documents"


class Index(http.server.BaseHTTPRequestHandler):
    """The JSON interface of a package index; the server's `answers` are by path."""

    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path)
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        server.answers = {}
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


GOOD = {"vulnerabilities": [], "urls": [{"digests": {"sha256": "a" * 64}, "yanked": False}]}
FLAW = {"id": "X-1", "summary": "it leaks", "fixed_in": ["2"], "withdrawn": None}


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (GOOD, None),
        (GOOD | {"vulnerabilities": [FLAW]}, "X-1: it leaks; fixed in 2"),
        (GOOD | {"vulnerabilities": [FLAW | {"withdrawn": "2026-01-01"}]}, None),
        (GOOD | {"urls": [{"digests": {"sha256": "b" * 64}}]}, "offers none of the locked files"),
        (GOOD | {"urls": [{**GOOD["urls"][0], "yanked": True, "yanked_reason": "broken"}]}, "was withdrawn: broken"),
    ],
)
def test_audit__finds_what_the_index_knows(
    index: http.server.ThreadingHTTPServer, answer: dict[str, Any], finding: str | None
) -> None:
    index.answers["/pypi/one/1/json"] = answer
    bad, unchecked = audit([Package("one", "1", "", ("a" * 64,))], f"http://127.0.0.1:{index.server_port}/simple/")
    assert unchecked == []
    assert [finding in line for line in bad] == ([True] if finding else [])


@pytest.mark.parametrize("port", ["closed", "open"])
def test_audit__without_an_answer_says_what_it_skipped(
    index: http.server.ThreadingHTTPServer,
    port: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.server_port if port == 'open' else 1}/simple")
    assert supply_chain.main(["audit"]) == 0
    printed = capsys.readouterr()
    total = len({(one.name, one.version) for path in LOCKS for one in locked(path)})
    assert f"AUDIT SKIPPED for {total} of {total} packages" in printed.err
    assert "audit: 0 packages checked" in printed.out


def test_audit__fails_for_a_bad_package(
    index: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.server_port}/simple")
    victim = locked(RUNTIME)[0]
    index.answers[f"/pypi/{victim.name}/{victim.version}/json"] = {"vulnerabilities": [FLAW], "urls": []}
    assert supply_chain.main(["audit"]) == 1
    assert f"BAD: {victim.name} {victim.version}: X-1" in capsys.readouterr().out
