"""The pages that ship: they name no package registry, decisions have one form, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADRS = sorted((ROOT / "docs/adr").glob("0*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SECTIONS = ("Context", "Decision", "Consequences", "Alternatives")
# Spelled in parts: this file is also searched for such names.
HOSTS = ("py" + "pi", "python" + "hosted", "npm" + "js", "registry.npm" + "js", "crates" + ".io")
REGISTRY = re.compile(
    r"\b(?:" + "|".join(map(re.escape, HOSTS)) + r")\b(?:\.(?:org|com))?|--(?:extra-)?index-url", re.I
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#|mailto:)([^)#\s]+)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages__name_no_package_registry(page: Path) -> None:
    assert not REGISTRY.search(page.read_text())


def test_registry_pattern__matches_hosts_and_index_options() -> None:
    assert REGISTRY.search("pip install --extra-index-url x")
    assert REGISTRY.search("get it from files.python" + "hosted.org today")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages__link_to_existing_files(page: Path) -> None:
    """Pages are also read where they lie, without the site."""
    assert not [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]


def test_decisions__are_numbered_without_gaps() -> None:
    assert ADRS
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize("adr", ADRS, ids=name_of)
def test_decisions__have_every_section(adr: Path) -> None:
    headings = re.findall(r"^## (.+)$", adr.read_text(), flags=re.MULTILINE)
    assert tuple(headings) == SECTIONS
    assert re.match(r"# \d{4}\. \S", adr.read_text()), "the title is '# NNNN. The decision in a phrase'"
