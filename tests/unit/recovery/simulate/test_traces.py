"""Reading what was recorded: the two meanings of a value, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import json

import pytest

from perdure.recovery.simulate import BadTrace, ZoneTrace, parse
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.traces import common_span, region_of

INFO = {"price_info": {"on_demand_price": 3.0, "price": 1.0, "instance_type": "p3.2xlarge"}}


def document(data: object, *, metadata: dict | None = None, **more: object) -> str:
    return json.dumps({"metadata": {"gap_seconds": 300, **INFO, **(metadata or {})}, "data": data, **more})


def read(text: str, *, name: str = "us-east-1a.json", unavailable_is: int = 1, **prices: float) -> ZoneTrace:
    return parse(text, name=name, unavailable_is=unavailable_is, **prices)


def test_a_value_means_what_the_reader_is_told() -> None:
    assert read(document([0, 1, 0])).counts == (1, 0, 1)
    assert read(document([0, 4, 1]), unavailable_is=0).counts == (0, 4, 1)


def test_numbers_of_machines_are_not_taken_for_flags() -> None:
    with pytest.raises(BadTrace, match=r"data\[2\] is 4: these are numbers of machines"):
        read(document([0, 1, 4]))


def test_a_trace_says_where_when_and_what() -> None:
    found = read(document([0, 1], metadata={"start_time": "2023-02-15T22:08:16"}), name="a/us-west-2b_v100_1.json")
    assert (found.zone, found.region, found.instance_type) == ("us-west-2b", "us-west-2", "p3.2xlarge")
    assert found.start_at == 1676498896.0
    assert found.prices == (1.0, 1.0)


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1a", "us-east-1"), ("us-central1-b", "us-central1"), ("eastus", "eastus"), ("local-1c", "local-1")],
)
def test_the_region_is_in_the_name(zone: str, region: str) -> None:
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
        (document([0], metadata={"start_time": "yesterday"}), "is no ISO 8601 time"),
        (document([0], metadata={"price_info": {"price": 1}}), "does not say what on-demand costs"),
        (document([0], metadata={"price_info": {"on_demand_price": 3}}), "has no prices"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    with pytest.raises(BadTrace, match=complaint):
        read(text)


def test_prices_that_are_given_win() -> None:
    bare = '{"metadata": {"gap_seconds": 300}, "data": [3, 0]}'
    found = read(bare, unavailable_is=0, spot_price=0.5, on_demand_price=2.0)
    assert (found.prices, found.on_demand_price) == ((0.5, 0.5), 2.0)


def test_the_bill_is_the_integral_of_the_price(zone) -> None:
    trace = zone("111", price=(3600.0, 7200.0, 3600.0))
    assert trace.spent(300) == pytest.approx(300)
    assert trace.spent(900) - trace.spent(300) == pytest.approx(300 + 600)
    assert trace.spent(1800) == pytest.approx(600 + 1200 + 600)


def test_when_room_begins_and_ends(zone) -> None:
    trace = zone("0021")
    assert [trace.has(2, at) for at in (0, 1199, 1200, 1799, 1800)] == [False, False, True, True, False]
    assert [trace.changes_at(2, at) for at in (0, 1200, 1800)] == [1200, 1800, float("inf")]
    assert trace.changes_at(1, 0) == 1200


def test_parts_are_cut_at_ticks(zone) -> None:
    trace = zone("000111")
    first, second = trace.part(0, 0.5), trace.part(0.5, 1)
    assert (first.counts, second.counts) == ((0, 0, 0), (1, 1, 1))
    assert second.start_at == first.end_at == 1800


def test_traces_that_do_not_overlap_are_not_one_market(zone) -> None:
    with pytest.raises(BadTrace, match="do not overlap"):
        common_span([zone("000111").part(0, 0.5), zone("000111", name="east-1b").part(0.5, 1)])


def test_folders_and_compressed_files(tmp_path) -> None:
    (tmp_path / "us-east-1b.json").write_text(document([0, 1]))
    (tmp_path / "us-east-1a.json.gz").write_bytes(gzip.compress(document([1, 1]).encode()))
    (tmp_path / "README").write_text("not a trace")
    assert [z.zone for z in load([tmp_path], unavailable_is=1)] == ["us-east-1a", "us-east-1b"]
    assert len(load([tmp_path, tmp_path / "us-east-1b.json"], unavailable_is=1)) == 2


def test_files_that_can_not_be_read(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.json.gz").write_text("not compressed")
    (tmp_path / "other").mkdir()
    for name in ("us-east-1a.json", "us-east-1a_v100_1.json"):
        (tmp_path / "other" / name).write_text(document([0]))
    for path, complaint in (
        ("nowhere.json", "nowhere.json can not be read: No such file"),
        ("empty", "holds no trace"),
        ("x.json.gz", "can not be read"),
        ("other", "several traces are of one zone, us-east-1a"),
    ):
        with pytest.raises(BadTrace, match=complaint):
            load([tmp_path / path], unavailable_is=1)
