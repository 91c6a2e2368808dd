"""The code in docs/contributing/adding-a-cloud.md is that of the example and of its test."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from perdure.controller.clouds.base import account_checks, notice_queue, protocol
from perdure.controller.clouds.base.descriptor import CloudDescriptor
from perdure.controller.clouds.pricing import price_list

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/contributing/adding-a-cloud.md").read_text()
SOURCES = [
    ROOT / "examples/toy_cloud/pyproject.toml",
    ROOT / "examples/toy_cloud/toy_cloud.py",
    Path(__file__).with_name("test_toy_cloud.py"),
]
BLOCKS = re.findall(r"^```\w+\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
MAX_LINES = 150


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0].strip())
def test_code_block__is_part_of_a_tested_file(block: str) -> None:
    assert any(block in source.read_text() for source in SOURCES)


def test_page__has_code_of_every_source() -> None:
    assert len(BLOCKS) > 5
    for source in SOURCES:
        assert any(block in source.read_text() for block in BLOCKS)


def test_page__explains_every_field_of_the_descriptor() -> None:
    fields = {field.name for field in dataclasses.fields(CloudDescriptor)}
    assert {field for field in fields if f"`{field}`" not in PAGE} == set()


def test_page__lists_every_optional_protocol() -> None:
    optional = {
        name
        for module in (protocol, notice_queue, account_checks, price_list)
        for name, value in inspect.getmembers(module, inspect.isclass)
        if getattr(value, "_is_runtime_protocol", False) and value.__module__ == module.__name__
    }
    internal = {"HasLocalBuckets"}  # the store of local buckets belongs to Perdure
    assert {name for name in optional - internal if f"`{name}`" not in PAGE} == set()


def test_page__is_short() -> None:
    assert len(PAGE.splitlines()) <= MAX_LINES
