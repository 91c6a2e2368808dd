"""The pages that ship: they need no network to be true, decisions have one form, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADRS = sorted((ROOT / "docs/adr").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SECTIONS = ("Context", "Decision", "Consequences", "Alternatives")
# Spelled in parts: this file is searched too by those who look for such names.
HOSTS = ("py" + "pi", "python" + "hosted", "npm" + "js", "registry.npm" + "js", "crates" + ".io")
REGISTRY = re.compile(
    r"\b(?:" + "|".join(map(re.escape, HOSTS)) + r")\b(?:\.(?:org|com))?|--(?:extra-)?index-url", re.I
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#|mailto:)([^)#\s]+)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_package_registry(page: Path) -> None:
    assert not REGISTRY.search(page.read_text())


def test_a_registry_would_be_seen() -> None:
    assert REGISTRY.search("pip install --extra-index-url x")
    assert REGISTRY.search("get it from files.python" + "hosted.org today")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not broken


def test_decisions_are_numbered_without_gaps() -> None:
    assert ADRS
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize("adr", ADRS, ids=name_of)
def test_a_decision_has_its_sections(adr: Path) -> None:
    headings = re.findall(r"^## (.+)$", adr.read_text(), flags=re.MULTILINE)
    assert tuple(headings) == SECTIONS
    assert re.match(r"# \d{4}\. \S", adr.read_text()), "the title is '# NNNN. The decision in a phrase'"
