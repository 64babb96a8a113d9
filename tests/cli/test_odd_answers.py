"""A server may answer anything: a command prints what it understands, or one line of error."""

from typing import Any

import pytest
from click.testing import CliRunner
from support import vectors
from support.odd_answers import variants

from recon_node.base.connection import Answer, Connection, Request
from recon_node.ceramic import METAMODEL, StreamId, StreamType
from recon_node.cli import main
from recon_node.ipld import CID, RAW

ROOT = CID.of(RAW, b"root")
STREAM = StreamId(StreamType.MODEL_INSTANCE, ROOT)
DID = "did:key:z6MkeTG3bFFSLYVU7VqhgZxqr6YzpaGrQtFMh1uvqGy1vDnP"


ANSWERS = vectors.load("command_answers", root=ROOT, stream=STREAM, did=DID, metamodel=METAMODEL)
"""What commands are answered by path: only what they read of it."""


@pytest.mark.parametrize("command", ANSWERS)
def test_an_odd_answer_is_one_line_of_error(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ANSWERS[command]
    current: dict[str, Any] = {}

    def exchange(self: Connection, request: Request) -> Answer:
        if request.path not in current:
            return Answer(404, "")
        return Answer(200, "JSON", current[request.path])

    monkeypatch.setattr(Connection, "exchange", exchange)
    monkeypatch.setenv("RECON_NODE_URL", "http://node")
    refused = 0
    for path, answer in answers.items():
        for where, variant in variants(answer):
            current = {**answers, path: variant}
            result = CliRunner().invoke(main, command.split())
            odd = (path, where, variant, result.output)
            assert result.exception is None or isinstance(result.exception, SystemExit), odd
            if result.stderr.startswith("Error: "):
                assert result.exit_code == 1, odd
                refused += 1
    assert refused


def test_a_mistake_of_a_command_is_not_one_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange(self: Connection, request: Request) -> Answer:
        return Answer(200, "JSON", ANSWERS["status"]["/ceramic/recon"])

    def mistaken(unix_time: float) -> str:
        raise KeyError(unix_time)

    monkeypatch.setattr(Connection, "exchange", exchange)
    monkeypatch.setattr("recon_node.cli.peers.ago", mistaken)
    result = CliRunner().invoke(main, ["peers", "--url", "http://node"])
    assert isinstance(result.exception, KeyError)


def test_an_error_below_api_v0_is_shown_by_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange(self: Connection, request: Request) -> Answer:
        return Answer(409, "", {"Message": "this node does not anchor", "Code": 0, "Type": "error"})

    monkeypatch.setattr(Connection, "exchange", exchange)
    result = CliRunner().invoke(main, ["stream", "anchor", str(STREAM), "--url", "http://node"])
    assert (result.exit_code, result.stderr) == (1, "Error: this node does not anchor\n")
