"""Builds the site of every language into `build/site`, indexes it for search, and checks every link of the result.

Fails when a page is missing, when the generator warns, when a link or an anchor leads nowhere, or when a page would ask
another host for anything.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from scripts.docs import links, search_marks
from scripts.docs.site import ENGLISH, LANGUAGES, PAGES, ROOT, SOURCES, TRANSLATED, Language, config

BUILD = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
_ASSETS = Path(__file__).with_name("assets")
# The page that each generator writes. A generator is a module with `page() -> str`. The pages are in the repository, so
# that readers find them there too.
GENERATED = {
    "reference/cli.md": "cli_reference",
    "reference/configuration.md": "config_reference",
    "reference/task-yaml.md": "yaml_reference",
    "reference/http-api.md": "http_reference",
    "reference/states.md": "states",
}
GENERATED_MARK = "<!-- Written by `make docs` from the code: do not edit. -->"
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)((?:#[^)\s]*)?)\)")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_NOT_TRANSLATED = {"zh": "!!! note\n    本页暂无中文版，以下为英文原文。\n\n"}


class BuildFailed(Exception):
    """The site cannot be built; the message says why."""


def generated(page: str) -> str:
    """The text of a generated page, from the code of today."""
    text: str = importlib.import_module(f"scripts.docs.{GENERATED[page]}").page()
    return f"{GENERATED_MARK}\n\n{text.rstrip()}\n"


def write_generated() -> None:
    """Write the generated pages into `docs/`."""
    for page in GENERATED:
        (SOURCES / page).write_text(generated(page))


def stage(language: Language) -> Path:
    """Lays out the Markdown of one language under `build/docs` and returns that folder."""
    target = BUILD / language.code
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(SOURCES, target, ignore=shutil.ignore_patterns("zh"))
    shutil.copytree(_ASSETS, target / "assets", dirs_exist_ok=True)
    if language is not ENGLISH:
        translations = SOURCES / language.code
        for page in PAGES:
            path = target / page
            if (translations / page).exists():
                path.write_text(_at_english_place(translations / page, translations))
            elif path.exists():
                path.write_text(_NOT_TRANSLATED[language.code] + path.read_text())
        if lost := [page for page in TRANSLATED if not (translations / page).exists()]:
            raise BuildFailed(f"docs/{language.code} lacks {', '.join(lost)}")
    for path in sorted(target.rglob("*.md")):
        _bring_files(path, target)
    if lost := [page for page in PAGES if not (target / page).exists()]:
        raise BuildFailed(f"scripts/docs/site.py names pages that do not exist: {', '.join(lost)}")
    return target


def _at_english_place(translation: Path, translations: Path) -> str:
    """The text of a translation with its links to pages and figures of `docs/` as they are where the English page lies.

    In the repository, a translation links to English pages with `../`; on the site every page has a Chinese address.
    """
    page = SOURCES / translation.relative_to(translations)

    def link(match: re.Match[str]) -> str:
        place = (translation.parent / match[1]).resolve()
        if place.is_relative_to(translations) or not place.is_relative_to(SOURCES):
            return match[0]
        return f"]({os.path.relpath(place, page.parent)}{match[2]})"

    return _LINK.sub(link, translation.read_text())


def _bring_files(page: Path, target: Path) -> None:
    """Copies files of the repository that a page links to, such as IAM policies, into the site, and links to them."""
    source = SOURCES / page.relative_to(target)

    def link(match: re.Match[str]) -> str:
        place = (source.parent / match[1]).resolve()
        if place.is_relative_to(SOURCES) or not place.is_relative_to(ROOT) or not place.exists():
            return match[0]
        if place.is_dir():
            place = place / "README.md" if (place / "README.md").exists() else place
        copy = target / "files" / place.relative_to(ROOT)
        # The generator would render Markdown as a page of its own, whose links lead out of the site.
        copy = copy.with_name(copy.name + ".txt") if copy.suffix == ".md" or place.is_dir() else copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            copy.write_text("\n".join(sorted(path.name for path in place.iterdir())) + "\n")
        else:
            shutil.copyfile(place, copy)
        return f"]({os.path.relpath(copy, page.parent)}{match[2] if copy.suffix != '.txt' else ''})"

    page.write_text(_LINK.sub(link, page.read_text()))


def render(language: Language, sources: Path) -> Path:
    """Runs the generator for one language and returns the folder of its HTML."""
    target = SITE / language.folder

    def relative(path: Path) -> str:
        return str(path.relative_to(BUILD.parent))

    settings = BUILD.parent / f"docs-{language.code}.yml"  # the generator writes only below its configuration
    settings.write_text(
        yaml.safe_dump(config(language, relative(sources), relative(target)), allow_unicode=True, sort_keys=False)
    )
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(settings)]
    done = subprocess.run(command, cwd=BUILD.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(
            f"the pages in {language.name} do not build:\n{_COLOR.sub('', done.stdout)}{done.stderr[-1000:]}"
        )
    return target


def finish(site: Path) -> None:
    """Prepares the HTML for search and for publication."""
    (site / "zh" / "404.html").unlink(missing_ok=True)  # a server shows that of the root
    for path in site.rglob("*.html"):
        path.write_text(search_marks.mark(path.read_text(encoding="utf-8")), encoding="utf-8")


def index() -> None:
    """Writes the search index of every language into the site."""
    command = [sys.executable, "-m", "pagefind", "--site", str(SITE), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"the search index cannot be built:\n{done.stdout}{done.stderr}")


def main() -> int:
    shutil.rmtree(SITE, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    write_generated()
    try:
        for language in LANGUAGES:
            render(language, stage(language))
        finish(SITE)
        index()
    except BuildFailed as error:
        print(f"make docs: {error}", file=sys.stderr)
        return 1
    problems = links.check(SITE)
    for problem in problems:
        print(f"make docs: {problem}", file=sys.stderr)
    if not problems:
        folder = SITE.relative_to(ROOT)
        print(
            f"The site is in {folder}. To read it with its search, run: python3 -m http.server -d {folder}\n"
            f"Without the search, open {folder}/index.html."
        )
    return 1 if problems else 0
