"""Whose statement runs next, when there are more than slots."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from spark_sink.serve import query_turns as turns
from spark_sink.serve.query_turns import MAX_WAITING, StatementTurns, address_of

HERE, THERE = "ipv4:127.0.0.1:5000", "ipv6:%5B2001:db8::1%5D:5000"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (HERE, "127.0.0.1"),
        (THERE, "2001:db8::1"),
        ("ipv6:[::1]:5", "::1"),
        ("unix:/tmp/x", "unix:/tmp/x"),
        ("", ""),
    ],
)
def test_the_address_of_a_client(peer: str, address: str) -> None:
    assert address_of(peer) == address


class Statements:
    """Statements that hold their turns until they leave or have to give way."""

    def __init__(self, limit: int) -> None:
        self.turns = StatementTurns(limit, quick_lane=True)
        self.given_way: list[str] = []

    def begin(self, client: str, name: str, stack: ExitStack, wait: float = 0) -> bool:
        return stack.enter_context(
            self.turns.taken_by(client, lambda: self.given_way.append(name), wait)
        )


@contextmanager
def quick(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(turns, "QUICK", seconds)
        yield


def test_another_client_gets_its_share_at_once() -> None:
    statements = Statements(4)
    with ExitStack() as stack:
        assert all(statements.begin(HERE, f"here {number}", stack) for number in range(4))
        assert not statements.begin(HERE, "one more", stack)
        assert statements.begin(THERE, "there 0", stack)
        assert statements.begin(THERE, "there 1", stack)
        assert not statements.begin(THERE, "there 2", stack)
        assert sorted(statements.given_way) == ["here 2", "here 3"]


def test_only_the_quick_lane_gives_way_to_a_statement_of_the_same_client(monkeypatch):
    with quick(monkeypatch, 0.0):
        statements = Statements(4)
    with ExitStack() as stack, ExitStack() as first:
        assert statements.begin(HERE, "0", first)
        assert all(statements.begin(HERE, str(number), stack) for number in range(1, 4))
        assert statements.begin(HERE, "4", stack)
        assert statements.given_way == ["2"]
        first.close()  # three are left, of which the first two may last
        assert statements.begin(HERE, "5", stack)
        assert statements.begin(HERE, "6", stack)
        assert statements.given_way == ["2", "4"]


def test_a_statement_waits_for_its_turn_and_only_so_many_do() -> None:
    statements = Statements(1)
    got: list[bool] = []

    def wait_for_turn() -> None:
        with statements.turns.taken_by(HERE, lambda: None, 60) as has_turn:
            got.append(has_turn)

    threads = [threading.Thread(target=wait_for_turn) for _ in range(MAX_WAITING)]
    with ExitStack() as stack:
        assert statements.begin(HERE, "first", stack)
        for thread in threads:
            thread.start()
        while len(statements.turns._waiting) < MAX_WAITING:
            time.sleep(0.01)
        assert not statements.begin(HERE, "too many", stack, wait=60)
        assert not got
    for thread in threads:
        thread.join(60)
    assert got == [True] * MAX_WAITING
    assert not statements.given_way
