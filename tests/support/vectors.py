"""What tests and other implementations are held to, in the JSON files of tests/data."""

import base64
import json
import re
from pathlib import Path
from typing import Any, Final

from recon_node.ipld import CID

DATA: Final = Path(__file__).parents[1] / "data"


def load(name: str, **values: object) -> Any:
    """Return what tests/data/NAME.json holds, with each `$name` of `values` in its texts replaced
    by the text of the value."""
    text = (DATA / f"{name}.json").read_text()
    if values:
        named = re.compile(rf"\$({'|'.join(values)})\b")
        text = named.sub(lambda found: json.dumps(str(values[found[1]]))[1:-1], text)
    return json.loads(text)


def values(data: Any) -> Any:
    """Return what DAG-JSON stands for, with `...` for the text "..."."""
    if isinstance(data, list):
        return [values(item) for item in data]
    if not isinstance(data, dict):
        return ... if data == "..." else data
    inner = data.get("/")
    if isinstance(inner, str):
        return CID.parse(inner)
    if isinstance(inner, dict):
        return base64.b64decode(inner["bytes"] + "==")
    return {name: values(item) for name, item in data.items()}
