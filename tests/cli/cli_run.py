"""Commands of `recon-node`, called in this process."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from recon_node.cli import main
from recon_node.testnet import TestnetNode

Events = list[dict[str, str]]


def run(
    *args: object,
    node: TestnetNode | None = None,
    data: str | bytes | None = None,
    code: int = 0,
    **env: str,
) -> Result:
    """Call a command, of a node if one is given, that has to end with this exit code."""
    where = {} if node is None else {"RECON_NODE_URL": node.api_url}
    result = CliRunner().invoke(main, [*map(str, args)], input=data, env=where | env)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def error_of(*args: object, code: int = 1, **options: Any) -> str:
    """What a command that has to fail says of it; it prints nothing else."""
    result = run(*args, code=code, **options)
    assert result.stdout == ""
    return result.stderr


def json_of(*args: object, **options: Any) -> Any:
    """What a command prints with --json, which has to be one JSON value."""
    return json.loads(run(*args, "--json", **options).stdout)


def damage_last_event(log: Path) -> None:
    """Of the 60 in the fixture `log`."""
    with closing(sqlite3.connect(log / "events.sqlite3")) as connection:
        connection.execute("UPDATE cars SET car = x'00' WHERE id = 60")
        connection.commit()
