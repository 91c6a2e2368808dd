"""The documentation site: generated pages name everything, drawings are of today's code, translations are not stale."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import click
import pytest
from scripts.docs import cli_reference, config_reference, http_reference, links, search_marks, states, yaml_reference
from scripts.docs.build import GENERATED, generated
from scripts.docs.site import CHINESE, ENGLISH, PAGES, ROOT, SOURCES, TRANSLATED, config

from perdure.cli.main import cli
from perdure.controller.api.app import openapi_document
from perdure.controller.runtime.config.reference import config_keys
from perdure.sdk.spec.task_fields import TASK_FIELDS

SOURCE = re.compile(r"<!-- source: (?P<page>docs/\S+) sha256:(?P<digest>[0-9a-f]{16}) -->")


def commands(group: click.Command, path: str = "perdure") -> list[str]:
    if not isinstance(group, click.Group):
        return [path]
    context = click.Context(group, info_name=path, **group.context_settings)
    children = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [path, *(one for name, child in children if child for one in commands(child, f"{path} {name}"))]


def test_cli_page__names_every_command() -> None:
    page = cli_reference.page()
    missing = [command for command in commands(cli) if f"`{command}`" not in page]
    assert len(commands(cli)) > 15
    assert not missing


def test_configuration_page__names_every_key() -> None:
    page = config_reference.page()
    keys = [key.path for key in config_keys()]
    assert len(keys) > 50
    assert not [key for key in keys if f"| `{key}` |" not in page]


def test_task_page__names_every_field() -> None:
    page = yaml_reference.page()
    assert not [name for name in TASK_FIELDS if f"| `{name}` |" not in page]


def test_http_page__names_every_route() -> None:
    page = http_reference.page()
    paths = openapi_document()["paths"]
    assert len(paths) > 10
    assert not [path for path in paths if path not in page]


@pytest.mark.parametrize("name", states.DIAGRAMS)
def test_state_diagrams__are_drawn_from_the_code_of_today(name: str) -> None:
    drawn = states.path_of(name).read_text()
    assert drawn.startswith(f"<!--\n{states.graph(name)}-->"), "run: python -m scripts.docs.states"


def test_site__lists_every_page_once() -> None:
    assert len(set(PAGES)) == len(PAGES)
    written = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.md")}
    unlisted = {page for page in written if not page.startswith(("zh/", "adr/0"))} - set(PAGES)
    assert not unlisted, "pages that no reader can reach by the navigation"
    assert set(PAGES) <= written


@pytest.mark.parametrize("page", GENERATED)
def test_generated_pages__are_of_the_code_of_today(page: str) -> None:
    assert (SOURCES / page).read_text() == generated(page), "run: make docs"


@pytest.mark.parametrize("page", TRANSLATED)
def test_translations__are_of_the_english_page_of_today(page: str) -> None:
    text = (SOURCES / "zh" / page).read_text()
    match = SOURCE.match(text)
    assert match, "a translation begins with: <!-- source: docs/PAGE sha256:DIGEST -->"
    assert match["page"] == f"docs/{page}"
    digest = hashlib.sha256((SOURCES / page).read_bytes()).hexdigest()[:16]
    assert match["digest"] == digest, f"docs/{page} has changed: translate the change, then write {digest}"


@pytest.mark.parametrize("page", TRANSLATED)
def test_translations__show_the_same_code(page: str) -> None:
    """Code blocks are the English ones but for comments, so that a fix reaches both."""

    def blocks(path: Path) -> list[str]:
        found_blocks = re.findall(r"```\w*\n(.*?)```", path.read_text(), flags=re.DOTALL)
        return [re.sub(r"\s*#\s.*", "", block) for block in found_blocks]

    assert blocks(SOURCES / "zh" / page) == blocks(SOURCES / page)


def test_config__links_the_languages_to_each_other() -> None:
    english, chinese = (config(language, "docs", "site")["extra"]["alternate"] for language in (ENGLISH, CHINESE))
    assert [(one["lang"], one["link"]) for one in english] == [("en", "./"), ("zh", "./zh/")]
    assert [(one["lang"], one["link"]) for one in chinese] == [("en", "../"), ("zh", "../zh/")]


def test_links__reports_dead_links_anchors_and_foreign_resources(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h2 id="here">x</h2><a href="#here">1</a><a href="b.html#no">2</a><a href="c.html">3</a>'
        '<a href="https://example.org/">4</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text("<p>b</p>")
    problems = links.check(tmp_path)
    assert problems == [
        "a.html loads https://example.org/x.js from another host",
        "a.html: b.html#no: there is no such heading",
        "a.html: c.html leads nowhere",
    ]


def test_search_marks__find_the_parts_of_a_key_and_hide_permalinks() -> None:
    html = search_marks.mark(
        '<h2>x<a class="headerlink" href="#x">&para;</a></h2>'
        "<td><code>a.images.&lt;region&gt;</code></td><td><code>a</code>"
    )
    assert '<a class="headerlink" data-pagefind-ignore href="#x">' in html
    assert '<code data-words="a images" data-pagefind-index-attrs="data-words">a.images.&lt;region&gt;</code>' in html
    assert html.endswith("<td><code>a</code>")


def test_readme__is_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert len(readme.split()) <= 900
