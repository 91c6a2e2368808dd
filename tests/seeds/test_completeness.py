"""Every command and code block of the documents is executed by a test, or listed with the reason why it is not."""

from __future__ import annotations

import hashlib
import importlib
import re
from pathlib import Path

import pytest
import yaml

from seeds.documents import DATA, DOCUMENTS, TRAINING_GUIDE, TRAINING_GUIDE_ZH, Document

NOT_EXECUTED: dict[str, list[dict[str, object]]] = yaml.safe_load((DATA / "not_executed.yaml").read_text())
MODULES = [path.stem for path in Path(__file__).parent.glob("test_*.py") if path.stem != "test_completeness"]


@pytest.fixture(scope="module", autouse=True)
def _taken() -> None:
    """Tests take items when they are imported."""
    for module in MODULES:
        importlib.import_module(f"seeds.{module}")


def test_documents__are_the_originals_byte_for_byte() -> None:
    """A formatter would change the code in them."""
    for line in (DATA / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_document__is_executed_or_says_why_not(document: Document) -> None:
    items = document.items()
    unknown, listed = [], set()
    for group in NOT_EXECUTED.get(document.name, []):
        assert group["reason"], "a reason is a sentence"
        for beginning in group["items"]:  # type: ignore[attr-defined]
            found = [item for item in items if item not in document.taken and item.text.startswith(beginning)]
            exact = [item for item in found if item.text == beginning]
            if not found:
                unknown.append(beginning)
            listed.update(exact or found[:1])
    assert not unknown, "listed, but executed or not in the document"
    missing = [f"{item.line}: {item.text}" for item in items if item not in document.taken | listed]
    assert not missing, f"{document.name}: neither executed nor listed in not_executed.yaml:\n" + "\n".join(missing)


def test_chinese_guide__has_no_code_that_the_english_one_lacks() -> None:
    """It is plain text whose code has lost its indentation, so its lines are compared."""
    english = {" ".join(line.split()) for item in TRAINING_GUIDE.items() for line in item.text.splitlines()}
    prose = set(NOT_EXECUTED[TRAINING_GUIDE_ZH.name][0]["items"])  # type: ignore[call-overload]
    chinese = re.compile(r"[一-鿿]")
    for line in TRAINING_GUIDE_ZH.read_text().splitlines():
        code = " ".join(line.removeprefix("$ ").split())
        assert not code or code in english | prose or chinese.search(code), (
            f"neither prose nor code of the guide: {code}"
        )
