"""Events of files."""

import io
import json

import pytest
from support import sdk_sample

from recon_node.base.terminal import CommandError
from recon_node.cli.streams.event_file import Item, NoEventsError, read_items
from recon_node.ipld import multibase


@pytest.fixture(scope="module")
def sample() -> list[dict[str, str]]:
    return sdk_sample.lines()[:80]


def items_of(text: str | bytes) -> list[Item]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_items(io.BytesIO(data)))


def test_json_lines(sample: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(event) + "\n" for event in sample)
    items = items_of(text)
    assert [(item.line, str(item.cid), item.data) for item in items] == [
        (number, event["cid"], event["car"]) for number, event in enumerate(sample, 1)
    ]
    assert sum(item.size for item in items) == len(text)
    for item, event in zip(items, sample, strict=True):
        if "prev" in event:
            assert event["prev"] in {str(parent) for parent in item.parents}
        else:
            assert not item.parents


def test_the_other_forms(sample: list[dict[str, str]]) -> None:
    car = sample[0]["car"]
    assert [item.data for item in items_of(f"\n{car}\n\n  {car}")] == [car, car]
    assert [item.line for item in items_of(f"\n{car}\n\n  {car}")] == [2, 4]
    assert [item.data for item in items_of(json.dumps({"data": car, "id": "x"}))] == [car]
    [binary] = items_of(multibase.decode(car))
    assert (binary.data, str(binary.cid)) == (car, sample[0]["cid"])
    assert items_of("") == []


def version_2(car: bytes) -> bytes:
    numbers = b"".join(number.to_bytes(8, "little") for number in (51, len(car), 0))
    return bytes.fromhex("0aa16776657273696f6e02") + bytes(16) + numbers + car + b"an index"


def test_the_event_in_a_car_of_version_2(sample: list[dict[str, str]]) -> None:
    car = multibase.decode(sample[0]["car"])
    [item] = items_of(version_2(car))
    assert (item.data, str(item.cid)) == (sample[0]["car"], sample[0]["cid"])


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        ("a.car", b"", "a.car is not a CAR that can be read: an empty file"),
        ("a.CAR", b"text", "is not a CAR that can be read"),
        ("a", bytes.fromhex("0aa16776657273696f6e182a"), "is not a CAR that can be read"),
        ("a", version_2(b"")[:30], "a CARv2 that ends within its header, at byte 30"),
        ("a", bytes.fromhex("0ca16776657273696f6e182a"), "the header at byte 0 claims 12 bytes"),
        ("a", bytes.fromhex("0ba16776657273696f6e182a"), "a CAR of version 42"),
        ("a", version_2(b"\x11\xa2\x65roots"), "the header at byte 51 claims 17 bytes"),
    ],
)
def test_a_damaged_car_is_refused_with_its_place(name: str, data: bytes, complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        list(read_items(io.BytesIO(data), name))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[" * 50_000, "not a CAR as multibase text, nor a JSON object"),
        ('{"a": ' * 50_000, "not JSON"),
        ('{"cid": "x"}', "has no 'car'"),
        ('{"car": 5}', "should be text"),
        ("??", "not a CAR as multibase"),
        ("# recon-node", "not a CAR as multibase"),
        (b"\xff\xfe", "not a CAR as multibase"),
    ],
)
def test_lines_without_an_event(line: str | bytes, problem: str) -> None:
    _, item = items_of(b"mAAAA\n" + (line.encode() if isinstance(line, str) else line))
    assert problem in item.problem
    assert len(item.problem) < 150


@pytest.mark.parametrize("bad_lines", [1, 9])
def test_a_file_may_begin_with_lines_without_an_event(bad_lines: int) -> None:
    items = items_of("??\n" * bad_lines + "mAAAA\n??\n")
    assert [item.problem is None for item in items] == [False] * bad_lines + [True, False]


@pytest.mark.parametrize("text", ["# recon-node\n\nA node", "??", "??\n" * 10 + "mAAAA\n", b"\xff"])
def test_a_file_of_another_kind_is_refused_once(text: str | bytes) -> None:
    with pytest.raises(NoEventsError, match=r"^x.md has no events: it is neither a CAR .*line 1"):
        list(read_items(io.BytesIO(text if isinstance(text, bytes) else text.encode()), "x.md"))


def test_a_car_that_is_not_an_event_is_left_to_the_node() -> None:
    [item] = items_of("mAAAA")
    assert (item.problem, item.cid, item.data) == (None, None, "mAAAA")
