"""Checks the HTML of the site: each internal link and anchor exists, and no page loads anything from another host."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a page makes the browser fetch something at once.
_LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "manifest"}


class _Page(HTMLParser):
    """The anchors that a page has, the links that it makes, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "href"):
            loading = tag == "link" and values.get("rel", "") in _LOADING_LINKS and name == "href"
            if name in values and (loading or (tag, name) in _LOADS):
                self.loads.append(values[name])


def _parse(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def check(site: Path) -> list[str]:
    """Returns one line for each dead link, dead anchor and foreign resource below `site`."""
    pages = {path.resolve(): _parse(path) for path in sorted(site.rglob("*.html")) if "pagefind" not in path.parts}
    return [problem for path, page in pages.items() for problem in _problems(site, path, page, pages)]


def _problems(site: Path, path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    name = path.relative_to(site.resolve())
    for address in page.loads:
        if urlsplit(address).netloc:
            yield f"{name} loads {address} from another host"
    if name.name == "404.html":  # its links are absolute, for it is served at any address
        return
    for address in page.links + page.loads:
        url = urlsplit(address)
        if url.scheme or url.netloc:
            continue
        target = (path.parent / unquote(url.path)).resolve() if url.path else path
        if target.is_dir():
            target = target / "index.html"
        if not target.exists():
            yield f"{name}: {address} leads nowhere"
        elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
            yield f"{name}: {address}: there is no such heading"
