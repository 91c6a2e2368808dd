"""The stores that a configuration sets up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.controller.buckets.configured import azure_account, configured_stores
from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.runtime.config.settings import read_settings


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ("r2: {}", "config.yaml:1: r2.account_id: is missing"),
        ("oci: {namespace: acme}", "config.yaml:1: oci.region: is missing"),
        ("vastdata: {}", "config.yaml:1: vastdata.endpoint: is missing"),
        ("r2: {acount_id: x}", "config.yaml:1: r2.acount_id: no such setting"),
        ("s3: {endpoint: tigris}", "config.yaml:1: s3.endpoint: 'tigris' is not a URL"),
        ("nebius: [1]", "config.yaml:1: nebius: [1] is not a mapping"),
        ("gcs: {region: us-east1}", "config.yaml:1: gcs.region: no such setting"),
        ("azure_blob: {account: 7}", "config.yaml:1: azure_blob.account: 7 is not text"),
        ("azure_blob: {endpoint: here}", "config.yaml:1: azure_blob.endpoint: 'here' is not a URL"),
    ],
)
def test_configured_stores__names_line_and_key_of_an_invalid_section(tmp_path: Path, section: str, error: str) -> None:
    (tmp_path / "config.yaml").write_text(section + "\n")
    with pytest.raises(SectionError, match=re.escape(error)):
        configured_stores(read_settings(tmp_path), buckets_on_node=None)


def test_configured_stores__needs_a_section_for_compatible_stores(tmp_path: Path) -> None:
    always = {"s3", "gcs", "azure"}
    assert set(configured_stores(read_settings(tmp_path), buckets_on_node=None)) == always
    (tmp_path / "config.yaml").write_text("r2: {account_id: 0123abcd}\n")
    assert set(configured_stores(read_settings(tmp_path), buckets_on_node="/b")) == always | {"local", "r2"}


def test_azure_account__from_the_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "fromenviron")
    assert azure_account(configured_stores(read_settings(tmp_path), buckets_on_node=None)) == "fromenviron"
    (tmp_path / "config.yaml").write_text("azure_blob: {account: fromfile}\n")
    assert azure_account(configured_stores(read_settings(tmp_path), buckets_on_node=None)) == "fromfile"
