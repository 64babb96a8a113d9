"""The options of the source "recon": what is taken, what is refused, and what comes of it."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.ceramic.init_header import METAMODEL
from spark_sink.errors import SinkError
from spark_sink.source.data_source import lag
from spark_sink.source.source_options import SourceOptions

DID = "did:key:z6Mk"


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"url": "http://node", **options})


@pytest.mark.parametrize(
    "filters",
    [
        {"sortKey": "model"},
        {"sortKey": "family", "sortValue": "blog"},
        {"sortValue": "anything"},
        {"sortKey": "controllers", "sortValue": DID, "controller": "did:web:a.b"},
    ],
)
def test_filters_that_the_node_can_answer_are_not_refused(filters: dict[str, str]) -> None:
    assert parse(**filters).feed.filters == filters


def test_filters_are_as_the_node_compares_them() -> None:
    """A StreamID may be written in any base, the sort value of an event is in base36."""
    model = "f" + METAMODEL.to_bytes().hex()
    filters = parse(sortKey="model", sortValue=model, streamId=model).feed.filters
    assert filters["sortValue"] == filters["streamId"] == "kh4q0ozorrgaq2mezktnrmdwleo1d"


def test_what_spark_adds_is_not_refused() -> None:
    added = {"path": "/a", "paths": '["/a"]', "provider": "recon", "location": "file:/a"}
    added |= {"option.url": "http://n", "spark.sql.sources.schema": "{}"}
    assert parse(**added).feed.filters == {}


@pytest.mark.parametrize(
    ("options", "message"),
    vectors.load("spark/option_refusals"),
)
def test_wrong_options_are_reported(options: dict[str, str], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        parse(**options)


@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 20))
def test_ranges_cut_a_batch_without_gap_or_overlap(after: int, rows: int, partitions: int) -> None:
    ranges = parse(partitions=str(partitions)).ranges(after, after + rows, "epoch")
    assert len(ranges) <= partitions
    assert all(r.after < r.upto for r in ranges)
    assert [r.after for r in ranges] == [after, *[r.upto for r in ranges][:-1]][: len(ranges)]
    assert [r.upto for r in ranges][-1:] == ([after + rows] if rows else [])
    sizes = [r.upto - r.after for r in ranges]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_the_token_goes_to_the_workers_and_into_no_text() -> None:
    options = parse(token="0123456789abcdef")
    copy = pickle.loads(pickle.dumps(options.feed))
    assert copy._client.headers["authorization"] == "Bearer 0123456789abcdef"
    assert "0123456789abcdef" not in repr(options)
    assert "authorization" not in parse().feed._client.headers


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        ('{"epoch": "A", "position": 5}', '{"epoch": "A", "position": 7}', 2),
        ({"epoch": "A", "position": 5}, {"epoch": "A", "position": 4}, 0),
        ({"epoch": "A", "position": 5}, {"epoch": "B", "position": 7}, None),
        ({"epoch": "A", "position": 5}, None, None),
        (None, {"epoch": "A", "position": 5}, None),
    ],
)
def test_the_lag_of_a_query(end: object, latest: object, behind: int | None) -> None:
    assert lag({"endOffset": end, "latestOffset": latest}) == behind
