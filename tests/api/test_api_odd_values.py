"""Values that no parameter expects, in each parameter of each request of the OpenAPI document."""

from collections.abc import Iterator
from typing import Any

import pytest
from api_samples import Api
from openapi_check import DOCUMENT

NUMBERS = ("", "-1", "1_0", "٣", "²", " 1", "0x10", "NaN", "Infinity", "1e999", "9" * 5000)
TEXTS = ("x", "9" * 5000, "%00", "%FF", "%", "%F0%9F%9F", "{{name}}")
UNAVAILABLE = (409, 503)
"""What is switched off in this node, or not there."""


def requests() -> Iterator[tuple[str, str, bool]]:
    """The method and path of each, and whether the odd value is that of a number or flag."""
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            parameters: list[dict[str, Any]] = operation.get("parameters", [])
            named = {
                parameter["name"]: "x" for parameter in parameters if parameter["in"] == "path"
            }
            for parameter in parameters:
                name = parameter["name"]
                if parameter["in"] == "path":
                    for value in TEXTS:
                        yield method, path.format_map({**named, name: value}), False
                    continue
                is_number = parameter["schema"].get("type") in ("integer", "number", "boolean")
                for value in NUMBERS if is_number else TEXTS:
                    yield method, f"{path.format_map(named)}?{name}={value}", is_number
                yield method, f"{path.format_map(named)}?{name}=x&{name}=y", is_number


@pytest.mark.parametrize("method", ["get", "post", "delete"])
async def test_each_is_answered_with_a_sentence(api: Api, method: str) -> None:
    for _, path, is_number in (request for request in requests() if request[0] == method):
        answer = await api.request(method.upper(), path, content=b"{}")
        if answer.is_error:
            assert {name.lower() for name in answer.json()} >= {"message"}
        if path.startswith("/api/v0/") and answer.status_code == 500:
            continue  # as kubo has it
        expected = (400, 404) if is_number else range(200, 500)
        assert answer.status_code in (*expected, *UNAVAILABLE), (path[:200], answer.text)
