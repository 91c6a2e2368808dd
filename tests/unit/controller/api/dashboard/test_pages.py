"""The page and its files: as built, with headers that allow nothing foreign."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from perdure.controller.api.app import create_app
from perdure.controller.api.dashboard import assets, pages
from support.helpers.timing import scaled
from unit.controller.api.dashboard.conftest import URL, Dashboard

ROOT = Path(__file__).resolve().parents[5]
SOURCES = ROOT / "dashboard"
MAX_SCRIPT_BYTES, MAX_STYLE_BYTES = 60 * 1024, 12 * 1024
REBUILD = "the built files are not those of dashboard/: run `make dashboard`"


def compressed_size(suffix: str) -> int:
    return sum(len(one.compressed) for name, one in assets.load_assets().items() if name.endswith(suffix))


def test_built_files__are_those_of_the_sources() -> None:
    digest = hashlib.sha256()
    inputs = sorted(str(path.relative_to(SOURCES)) for path in (SOURCES / "src").rglob("*") if path.is_file())
    # In the order in which build.mjs visits folders: by the names within each folder.
    inputs.sort(key=lambda name: name.split("/"))
    for name in [*inputs, "build.mjs", "package-lock.json", "package.json"]:
        digest.update(f"{name}\0".encode() + (SOURCES / name).read_bytes() + b"\0")
    recorded = (assets.FOLDER / "sources.sha256").read_text().strip()
    assert recorded == digest.hexdigest(), REBUILD


def test_built_files__equal_a_fresh_build(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (SOURCES / "node_modules/esbuild").exists():
        pytest.skip("node and the packages of dashboard/ are not installed: run scripts/ensure-chromium.sh")
    subprocess.run([node, SOURCES / "build.mjs", tmp_path], check=True, capture_output=True, timeout=scaled(60))
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert built == {path.name: path.read_bytes() for path in assets.FOLDER.iterdir()}, REBUILD


def test_built_files__are_small() -> None:
    assert 0 < compressed_size(".js") <= MAX_SCRIPT_BYTES
    assert 0 < compressed_size(".css") <= MAX_STYLE_BYTES


def test_built_files__ask_no_other_host() -> None:
    for name, asset in assets.load_assets().items():
        # Namespaces of XML are names, not addresses.
        foreign = set(re.findall(rb"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", asset.plain)) - {b"http://www.w3.org"}
        assert not foreign, name


def test_page__has_no_inline_script_or_style() -> None:
    page = assets.load_assets()[assets.PAGE].plain.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert not re.search(r"\s(on\w+|style)=", page)


@pytest.mark.parametrize("path", pages.PATHS)
def test_page__is_served_for_every_view(dashboard: Dashboard, path: str) -> None:
    response = dashboard.browser.get(re.sub(r"{\w+:int}", "7", path))
    assert response.content == assets.load_assets()[assets.PAGE].plain
    assert response.headers["cache-control"] == "no-store"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"


def test_files__are_kept_forever_and_compressed(dashboard: Dashboard) -> None:
    page = dashboard.browser.get("/").text
    names = re.findall(r"/assets/([\w.-]+)", page)
    assert len(names) == 4
    for name in names:
        plain = dashboard.browser.get(f"/assets/{name}", headers={"Accept-Encoding": "identity"})
        assert plain.content == (assets.FOLDER / name).read_bytes()
        assert "immutable" in plain.headers["cache-control"]
        assert "content-security-policy" in plain.headers
        packed = dashboard.browser.get(f"/assets/{name}", headers={"Accept-Encoding": "gzip, br"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content, "httpx unpacks it"
        assert gzip.decompress(assets.load_assets()[name].compressed) == plain.content


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2f..%2ftoken", "sources.sha256"])
def test_files__are_only_those_that_were_built(dashboard: Dashboard, name: str) -> None:
    assert dashboard.browser.get(f"/assets/{name}").status_code == 404


def test_page__says_what_to_do_if_it_was_not_built(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "load_assets", dict)
    response = TestClient(create_app(dashboard.daemon.api_context), base_url=URL).get("/")
    assert response.status_code == 404
    assert "make dashboard" in response.json()["error"]["fix"]
