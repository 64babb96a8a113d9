"""What tests and other implementations are held to, in the JSON files of tests/data."""

import json
import re
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parents[1] / "data"


def load(name: str, **values: object) -> Any:
    """Return what tests/data/NAME.json holds, with each `$name` of `values` in its texts replaced
    by the text of the value."""
    text = (DATA / f"{name}.json").read_text()
    if values:
        named = re.compile(rf"\$({'|'.join(values)})\b")
        text = named.sub(lambda found: json.dumps(str(values[found[1]]))[1:-1], text)
    return json.loads(text)
