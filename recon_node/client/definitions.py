"""Definitions of models: what they say of their documents, and how those relate to others.

    ModelDefinition(
        name="Comment",
        schema={"properties": {"text": {"type": "string"}, "post": {"type": "string"}}},
        relations={"post": Relation.document(post_model)},
        views={"author": View.author()},
    )

A definition is the content of a model's init event, of version 2.0. The node checks it by the rules
in docs/api.md; `to_json` only writes it down. Source of the fields: the Ceramic SDK's
`@ceramic-sdk/model-protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias

from recon_node.client.arguments import StreamRef, to_object

AccountRelation: TypeAlias = Literal["list", "single", "set", "none"]

_VERSION: Final = "2.0"


@dataclass(frozen=True, slots=True)
class Relation:
    """What a field of a document refers to."""

    type: Literal["account", "document"]
    model: StreamRef | None = None

    @classmethod
    def account(cls) -> Self:
        """The field holds a DID."""
        return cls("account")

    @classmethod
    def document(cls, model: StreamRef | None = None) -> Self:
        """The field holds the StreamID of a document: of that model, or of any."""
        return cls("document", model)

    def to_json(self) -> dict[str, Any]:
        """The relation as in a definition."""
        if self.type == "account":
            return {"type": self.type}
        return {"type": self.type, "model": _text(self.model)}


@dataclass(frozen=True, slots=True)
class View:
    """A property that documents do not store: applications and indexers derive it."""

    type: str
    model: StreamRef | None = None
    property: str | None = None

    @classmethod
    def author(cls) -> Self:
        """The DID of the document's controller (`documentAccount`)."""
        return cls("documentAccount")

    @classmethod
    def version(cls) -> Self:
        """The document's latest event (`documentVersion`)."""
        return cls("documentVersion")

    @classmethod
    def related(cls, field_name: str, model: StreamRef | None = None) -> Self:
        """The document that a field of this one refers to (`relationDocument`)."""
        return cls("relationDocument", model, field_name)

    @classmethod
    def referring(cls, model: StreamRef, field_name: str) -> Self:
        """The documents of a model whose field refers to this one (`relationFrom`)."""
        return cls("relationFrom", model, field_name)

    @classmethod
    def count_referring(cls, model: StreamRef, field_name: str) -> Self:
        """How many documents of a model refer to this one (`relationCountFrom`)."""
        return cls("relationCountFrom", model, field_name)

    @classmethod
    def set_referring(cls, model: StreamRef, field_name: str) -> Self:
        """The one document of a `set` model that refers to this one (`relationSetFrom`)."""
        return cls("relationSetFrom", model, field_name)

    def to_json(self) -> dict[str, Any]:
        """The view as in a definition."""
        if self.property is None:
            return {"type": self.type}
        return {"type": self.type, "model": _text(self.model), "property": self.property}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefinition:
    """The definition of a model.

    Args:
        name: for people.
        schema: a JSON Schema (2020-12) of an object. `type` and `additionalProperties` are added
            where they are missing: a model's documents have no other properties.
        description: for people.
        account_relation: how many documents an account can have: any number ("list"), one
            ("single"), one for each value of `set_fields` ("set"), or none, as of an interface.
        set_fields: of the content, for "set".
        immutable_fields: fields that keep their first value.
        relations: by the field that refers to something.
        views: by their names, which are not those of fields.
        interface: whether it only describes what other models have in common.
        implements: the interfaces that the model implements.
    """

    name: str
    schema: Mapping[str, Any]
    description: str | None = None
    account_relation: AccountRelation = "list"
    set_fields: Sequence[str] = ()
    immutable_fields: Sequence[str] = ()
    relations: Mapping[str, Relation] = field(default_factory=dict[str, Relation])
    views: Mapping[str, View] = field(default_factory=dict[str, View])
    interface: bool = False
    implements: Sequence[StreamRef] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content of a model's init event.

        Raises:
            InvalidArgumentError: the schema is not a JSON object.
        """
        relation: dict[str, Any] = {"type": self.account_relation}
        if self.account_relation == "set":
            relation["fields"] = list(self.set_fields)
        definition: dict[str, Any] = {
            "name": self.name,
            "interface": self.interface,
            "implements": [_text(model) for model in self.implements],
            "schema": to_object(self.schema, "the schema of a model"),
            "accountRelation": relation,
        }
        if self.description is not None:
            definition["description"] = self.description
        if self.immutable_fields:
            definition["immutableFields"] = list(self.immutable_fields)
        if self.relations:
            definition["relations"] = {name: r.to_json() for name, r in self.relations.items()}
        if self.views:
            definition["views"] = {name: view.to_json() for name, view in self.views.items()}
        return with_defaults(definition)


def with_defaults(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a model's init event with the defaults of what is missing."""
    schema = definition.get("schema")
    if isinstance(schema, Mapping):
        schema = {"type": "object", "additionalProperties": False, **schema}
        definition = {**definition, "schema": schema}
    return {
        "version": _VERSION,
        "interface": False,
        "implements": [],
        "accountRelation": {"type": "list"},
        **definition,
    }


def _text(model: StreamRef | None) -> str | None:
    return None if model is None else str(getattr(model, "id", model))
