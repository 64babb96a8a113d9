"""Docstrings of attributes are found in the source."""

from dataclasses import dataclass
from enum import IntEnum

from recon_node.api.app import ENDPOINTS
from recon_node.api.openapi import describe
from recon_node.base.setting_types import attribute_docs


@dataclass
class Base:
    first: int
    """What the
    base says."""
    second: int
    """Said first."""
    bare: int


@dataclass
class Derived(Base):
    second: int
    """Said again."""
    third: int = 3
    fourth: int = 4
    "In one pair of quotes."


def test_they_are_inherited_and_replaced() -> None:
    assert attribute_docs(Base) == {"first": "What the\nbase says.", "second": "Said first."}
    assert attribute_docs(Derived) == {
        "first": "What the\nbase says.",
        "second": "Said again.",
        "fourth": "In one pair of quotes.",
    }


def test_what_has_no_source_of_its_own_has_none() -> None:
    assert attribute_docs(int) == attribute_docs(IntEnum("Made", ["A"])) == {}


def test_the_api_s_document_says_what_fields_mean() -> None:
    schemas = describe(ENDPOINTS)["components"]["schemas"].values()
    fields = [field for schema in schemas for field in schema.get("properties", {}).values()]
    said = {field.get("description") for field in fields}
    of_a_dataclass = "The round-trip time in seconds."
    of_a_body = "The event's CAR, as multibase text."
    assert said >= {of_a_dataclass, of_a_body}
