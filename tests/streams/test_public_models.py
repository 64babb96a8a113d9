"""Documents of the public models of the network get the verdict of ajv, as js-ceramic gives it.

`public_models.json` has the schemas of 88 models from public repositories. For each, a complete
document, the least one, and changes of the complete one: `[path, 1, value, verdict]` sets a member,
`[path, 0, null, verdict]` removes it; the verdict is that of ajv 8 for draft 2020-12 with formats
off. A value `{"repeat": [text, n]}` stands for a long text.
"""

import copy
from collections.abc import Iterator
from typing import Any

from support import vectors

from recon_node.streams import why_unusable
from recon_node.streams.document_schema import compiled
from recon_node.streams.json_values import Budget, weigh_json

MODELS = vectors.load("public_models")["models"]


def documents(model: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    for name in ("complete", "least"):
        document, verdict = model[name]
        yield document, bool(verdict)
    for path, is_set, value, verdict in model["changes"]:
        yield changed(model["complete"][0], path, is_set, value), bool(verdict)


def changed(document: Any, path: list[str | int], is_set: int, value: Any) -> Any:
    token, *below = path
    document = copy.copy(document)
    if below:
        document[token] = changed(document[token], below, is_set, value)
    elif not is_set:
        del document[token]
    elif isinstance(value, dict) and "repeat" in value:
        text, times = value["repeat"]
        document[token] = text * times
    else:
        document[token] = value
    return document


def test_the_verdict_is_that_of_ajv() -> None:
    wrong = []
    for model in MODELS:
        schema = compiled(model["schema"])
        assert why_unusable({"schema": model["schema"]}) is None, model["model"]
        for document, verdict in documents(model):
            weight, _ = weigh_json(document)
            budget = Budget.of_event(weight)
            error = schema.error(document, weight, budget)
            by_member = schema.error(document, 10**7, Budget.of_event(10**6), frozenset(document))
            if not (error is None) == (by_member is None) == verdict:
                wrong.append((model["model"], document, error, by_member, verdict))
    assert not wrong
