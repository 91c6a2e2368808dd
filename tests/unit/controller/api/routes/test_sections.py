"""Routes that are included when the first request for them arrives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from perdure.controller.api.routes import sections
from perdure.controller.api.routes.sections import SECTIONS, RouteSections, SectionLoader, load_module, path_head


@pytest.mark.parametrize("name", SECTIONS)
def test_sections__name_every_path_of_their_module(name: str) -> None:
    heads = {path_head(route.path) for route in load_module(name).router.routes}
    assert heads == set(SECTIONS[name])


@pytest.mark.parametrize(
    ("path", "head"),
    [
        ("/", "/"),
        ("/healthz", "/healthz"),
        ("/jobs/7", "/jobs"),
        ("/api/v1/jobs", "/api/v1/jobs"),
        ("/api/v1/jobs/", "/api/v1/jobs"),
        ("/api/v1/jobs/7/logs", "/api/v1/jobs"),
        ("/agent/v1/spec", "/agent/v1/spec"),
        ("/api", "/api"),
        ("", ""),
    ],
)
def test_path_head__ends_with_the_first_word(path: str, head: str) -> None:
    assert path_head(path) == head


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, APIRouter]:
    """Three sections: `a` and `b` share the head /x, where both have a route for /x/1; `c` has /y."""
    routers = {name: APIRouter() for name in "abc"}
    monkeypatch.setattr(sections, "SECTIONS", {"a": ("/x",), "b": ("/x",), "c": ("/y",)})
    monkeypatch.setattr(sections, "load_module", lambda name: type("Module", (), {"router": routers[name]}))
    monkeypatch.setattr(sections, "require_declarations", lambda _: None)
    for name, path in (("a", "/x/1"), ("b", "/x/{number}"), ("c", "/y")):
        routers[name].add_api_route(path, lambda name=name: name)
    return routers


@pytest.fixture
def app() -> FastAPI:
    return FastAPI()


def served(app: FastAPI, **more: Callable[[str], object]) -> TestClient:
    app.add_middleware(SectionLoader, sections=RouteSections(app), **more)  # type: ignore[arg-type]
    return TestClient(app)


@pytest.mark.usefixtures("modules")
def test_request__loads_the_modules_of_its_head_alone(app: FastAPI) -> None:
    loaded: list[str] = []
    client = served(app, load=loaded.append)
    assert client.get("/nowhere").status_code == 404
    assert loaded == []
    assert [client.get(path).json() for path in ("/x/2", "/x/1", "/x/2")] == ["b", "a", "b"]
    assert loaded == ["a", "b"]
    assert client.get("/y").json() == "c"


@pytest.mark.usefixtures("modules")
def test_openapi_document__has_the_routes_that_nobody_has_requested(app: FastAPI) -> None:
    loaded: list[str] = []
    client = served(app, load=loaded.append)
    assert client.get("/y").json() == "c"
    assert set(client.get("/openapi.json").json()["paths"]) == {"/x/1", "/x/{number}", "/y"}
    assert loaded == ["c", "a", "b"]


def test_routes__are_matched_in_the_order_of_the_table(modules: dict[str, APIRouter], app: FastAPI) -> None:
    modules["c"].add_api_route("/x/1", lambda: "c")
    of = RouteSections(app)
    for name in ("c", "b", "a", "c"):
        of.include([name])
    assert TestClient(app).get("/x/1").json() == "a"


@pytest.mark.usefixtures("modules")
def test_simultaneous_requests__include_a_module_once(app: FastAPI) -> None:
    both_wait = threading.Barrier(2, timeout=60)
    of = RouteSections(app)
    loader = SectionLoader(app, of, load=lambda name: both_wait.wait() if name == "c" else None)
    sent: list[int] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            sent.append(int(str(message["status"])))

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def request() -> None:
        scope = {"type": "http", "path": "/y", "method": "GET", "headers": [], "query_string": b"", "app": app}
        await loader(scope, receive, send)  # type: ignore[arg-type]

    async def two() -> None:
        await asyncio.gather(request(), request())

    asyncio.run(two())
    assert sent == [200, 200]
    assert len(app.routes) == len(FastAPI().routes) + 1


def test_route_without_a_declaration__is_not_served(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()
    router.add_api_route("/open", lambda: "everything")
    monkeypatch.setattr(sections, "load_module", lambda _: type("Module", (), {"router": router}))
    monkeypatch.setattr(sections, "SECTIONS", {"a": ("/open",)})
    with pytest.raises(TypeError, match="declares no permission"):
        served(app, load=lambda _: None).get("/open")
    assert TestClient(app, raise_server_exceptions=False).get("/open").status_code == 500
