"""rclone's JSON record of a cached file, in `vfsMeta` of its cache directory.

`Dirty` is true from the first open for writing until the object is in the bucket and verified; only then `Fingerprint`
is set. `Size` and `ModTime` are those of the file in the cache. A file that was only read has the time of the read.
"""

from __future__ import annotations

import calendar
import json
import re
from dataclasses import dataclass

from perdure.checkpoint.durability.file_version import FileVersion

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(?P<fraction>\d{1,9}))?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>\d\d):(?P<minutes>\d\d))"
)
# rclone stores some names in another form than the mount shows: names with the characters that its encodings use for
# control characters, and with the one that it puts before such a character to quote it.
_ENCODED = re.compile("[\x00-\x1f\x7f\u201b\u2400-\u2426\ud800-\udfff]")


@dataclass(frozen=True)
class CacheRecord:
    """What the record says of its file."""

    is_uploaded: bool  # the bucket has what is in the cache
    size: int | None  # bytes; None if the record does not say it
    mtime_ns: int | None  # since the epoch

    def has(self, version: FileVersion | None) -> bool:
        """Whether what is in the cache is `version`; None: any content."""
        return version is None or (self.size is not None and version.matches(self.size, self.mtime_ns))


def parse_record(raw: bytes) -> CacheRecord:
    """Raises ValueError, KeyError or TypeError for a record that is being rewritten."""
    record = json.loads(raw)
    is_uploaded = record["Dirty"] is False and bool(record["Fingerprint"])
    size = record.get("Size")
    return CacheRecord(is_uploaded, size if isinstance(size, int) else None, parse_time(record.get("ModTime")))


def has_record_name(name: str) -> bool:
    """Whether the record of the file `name` is certain to have this name, too."""
    return _ENCODED.search(name) is None


def parse_time(moment: object) -> int | None:
    """A time as Go writes it (RFC 3339, up to nine decimals), since the epoch; None for anything else."""
    match = _TIME.fullmatch(moment) if isinstance(moment, str) else None
    if match is None:
        return None
    seconds = calendar.timegm(tuple(map(int, match.groups()[:6])))
    if match["sign"]:
        offset_s = int(match["hours"]) * 3600 + int(match["minutes"]) * 60
        seconds -= offset_s if match["sign"] == "+" else -offset_s
    return seconds * 1_000_000_000 + int((match["fraction"] or "").ljust(9, "0"))
