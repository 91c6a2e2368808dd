"""rclone's record of a cached file."""

from __future__ import annotations

import json

import pytest

from perdure.checkpoint.durability.cache_record import CacheRecord, has_record_name, parse_record
from perdure.checkpoint.durability.file_version import FileVersion

SECOND = 1_795_475_476  # 2026-11-23T23:11:16Z


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-23T23:11:16.921545717Z", SECOND * 10**9 + 921_545_717),
        ("2026-11-23T23:11:16.92Z", SECOND * 10**9 + 920_000_000),
        ("2026-11-23T23:11:16Z", SECOND * 10**9),
        ("2026-11-24T01:11:16.000000001+02:00", SECOND * 10**9 + 1),
        ("2026-11-23T17:41:16-05:30", SECOND * 10**9),
        ("2026-11-23 23:11:16", None),
        ("", None),
        (7, None),
    ],
)
def test_parse_record__has_the_time_to_the_nanosecond(moment: object, expected: int | None) -> None:
    raw = json.dumps({"ModTime": moment, "Size": 7, "Dirty": False, "Fingerprint": "7"}).encode()
    assert parse_record(raw) == CacheRecord(is_uploaded=True, size=7, mtime_ns=expected)


@pytest.mark.parametrize("raw", [b"", b'{"Dir', b"[]", b'{"Dirty": false}'])
def test_parse_record__rejects_one_that_is_being_written(raw: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_record(raw)


def test_record__without_a_size_or_time_has_no_version() -> None:
    record = parse_record(b'{"Dirty": false, "Fingerprint": "7"}')
    assert record.has(None)
    assert not record.has(FileVersion(7, 0, 1 << 62))
    assert not record.has(FileVersion(-1, 0, -1))


@pytest.mark.parametrize("name", ["a.pt", "a b/\u00e9.pt", "\u6a21\u578b\uff08\u4e00\uff09.pt", "a. ", "a\\b", "{a}:b"])
def test_has_record_name__common_names(name: str) -> None:
    assert has_record_name(name)


@pytest.mark.parametrize("name", ["a\u201bb", "\u2424", "a\u2400/b", "a\nb", "a\x7f", "a\udcff"])
def test_has_record_name__not_for_names_that_rclone_may_encode(name: str) -> None:
    assert not has_record_name(name)
