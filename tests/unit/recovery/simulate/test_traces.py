"""Reading what was recorded: the two meanings of a value, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perdure.recovery.simulate import BadTrace, ZoneTrace, parse
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.traces import common_span, region_of
from unit.recovery.simulate.markets import MakeZone

INFO = {"price_info": {"on_demand_price": 3.0, "price": 1.0, "instance_type": "p3.2xlarge"}}


def document(data: object, *, metadata: dict[str, object] | None = None, **more: object) -> str:
    return json.dumps({"metadata": {"gap_seconds": 300, **INFO, **(metadata or {})}, "data": data, **more})


def parsed(text: str, *, name: str = "us-east-1a.json", unavailable_is: int = 1, **prices: float) -> ZoneTrace:
    return parse(text, name=name, unavailable_is=unavailable_is, **prices)


def test_parse__unavailable_is_decides_meaning() -> None:
    assert parsed(document([0, 1, 0])).counts == (1, 0, 1)
    assert parsed(document([0, 4, 1]), unavailable_is=0).counts == (0, 4, 1)


def test_parse__rejects_counts_as_flags() -> None:
    with pytest.raises(BadTrace, match=r"data\[2\] is 4: these are numbers of machines"):
        parsed(document([0, 1, 4]))


def test_parse__reads_zone_start_and_instance_type() -> None:
    trace = parsed(document([0, 1], metadata={"start_time": "2023-02-15T22:08:16"}), name="a/us-west-2b_v100_1.json")
    assert (trace.zone, trace.region, trace.instance_type) == ("us-west-2b", "us-west-2", "p3.2xlarge")
    assert trace.start_at == 1676498896.0
    assert trace.prices == (1.0, 1.0)


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1a", "us-east-1"), ("us-central1-b", "us-central1"), ("eastus", "eastus"), ("local-1c", "local-1")],
)
def test_region_of__zone_names(zone: str, region: str) -> None:
    assert region_of(zone) == region


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 2", "is not JSON"),
        ("[]", "is no trace: it needs metadata.gap_seconds"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "is no trace"),
        (document([]), "is no trace"),
        (document([0, 1.5]), r"data\[1\] is 1.5, not a whole number"),
        (document([0, True]), r"data\[1\] is True"),
        (document([0, -1]), r"data\[1\] is -1"),
        (document([0], prices=[1.0, 2.0]), "2 prices for 1 ticks"),
        (document([0], prices={"0": 1}), "no list of prices"),
        (document([0], prices=[0]), r"prices\[0\] is 0, not a price"),
        (document([0], prices=[float("nan")]), r"prices\[0\] is nan"),
        (document([0], metadata={"start_time": "yesterday"}), "neither an ISO 8601 time nor seconds"),
        (document([0], metadata={"price_info": {"price": 1}}), "has no on-demand price"),
        (document([0], metadata={"price_info": {"on_demand_price": 3}}), "has no prices"),
    ],
)
def test_parse__explains_errors(text: str, complaint: str) -> None:
    with pytest.raises(BadTrace, match=complaint):
        parsed(text)


def test_parse__given_prices_override_file() -> None:
    bare = '{"metadata": {"gap_seconds": 300}, "data": [3, 0]}'
    trace = parsed(bare, unavailable_is=0, spot_price=0.5, on_demand_price=2.0)
    assert (trace.prices, trace.on_demand_price) == ((0.5, 0.5), 2.0)


def test_spent__is_integral_of_price(zone: MakeZone) -> None:
    trace = zone("111", price=(3600.0, 7200.0, 3600.0))
    assert trace.spent(300) == pytest.approx(300)
    assert trace.spent(900) - trace.spent(300) == pytest.approx(300 + 600)
    assert trace.spent(1800) == pytest.approx(600 + 1200 + 600)


def test_next_change__of_capacity(zone: MakeZone) -> None:
    trace = zone("0021")
    assert [trace.has_capacity(2, at) for at in (0, 1199, 1200, 1799, 1800)] == [False, False, True, True, False]
    assert [trace.next_change(2, at) for at in (0, 1200, 1800)] == [1200, 1800, float("inf")]
    assert trace.next_change(1, 0) == 1200


def test_slice__cuts_at_ticks(zone: MakeZone) -> None:
    trace = zone("000111")
    first, second = trace.slice(0, 0.5), trace.slice(0.5, 1)
    assert (first.counts, second.counts) == ((0, 0, 0), (1, 1, 1))
    assert second.start_at == first.end_at == 1800


def test_common_span__rejects_traces_without_overlap(zone: MakeZone) -> None:
    with pytest.raises(BadTrace, match="do not overlap"):
        common_span([zone("000111").slice(0, 0.5), zone("000111", name="east-1b").slice(0.5, 1)])


def test_load__reads_folders_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "us-east-1b.json").write_text(document([0, 1]))
    (tmp_path / "us-east-1a.json.gz").write_bytes(gzip.compress(document([1, 1]).encode()))
    (tmp_path / "README").write_text("not a trace")
    assert [z.zone for z in load([tmp_path], unavailable_is=1)] == ["us-east-1a", "us-east-1b"]
    assert len(load([tmp_path, tmp_path / "us-east-1b.json"], unavailable_is=1)) == 2


def test_load__explains_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.json.gz").write_text("not compressed")
    (tmp_path / "other").mkdir()
    for name in ("us-east-1a.json", "us-east-1a_v100_1.json"):
        (tmp_path / "other" / name).write_text(document([0]))
    for path, complaint in (
        ("nowhere.json", "nowhere.json cannot be read: No such file"),
        ("empty", "contains no trace"),
        ("x.json.gz", "cannot be read"),
        ("other", "several traces are of one zone, us-east-1a"),
    ):
        with pytest.raises(BadTrace, match=complaint):
            load([tmp_path / path], unavailable_is=1)


def test_parse__start_may_be_seconds() -> None:
    """Some collections count from a moment of their own."""
    assert parsed(document([0, 1], metadata={"start_time": 952})).start_at == 952
    with pytest.raises(BadTrace, match="start_time is -1, neither"):
        parsed(document([0, 1], metadata={"start_time": -1}))


def test_load__folder_names_the_zone_of_a_full_recording(tmp_path: Path) -> None:
    for zone in ("us-west-2a_v100_1", "us-west-2b_v100_1"):
        (tmp_path / zone).mkdir()
        for name, values in (("full", [0, 1, 0]), ("0", [0]), ("1", [1])):
            (tmp_path / zone / f"{name}.json").write_text(document(values))
    by_files = load(sorted(tmp_path.glob("*/full.json")), unavailable_is=1)
    assert [zone.zone for zone in by_files] == ["us-west-2a", "us-west-2b"]
    assert load([tmp_path], unavailable_is=1) == load(sorted(tmp_path.iterdir()), unavailable_is=1) == by_files
    (piece,) = load([tmp_path / "us-west-2a_v100_1" / "1.json"], unavailable_is=1)
    assert (piece.zone, piece.counts) == ("us-west-2a", (0,))
