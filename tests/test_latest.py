"""A bounded dictionary against a list of its entries, the oldest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recon_node.latest import Latest

KEYS = st.integers(0, 7)


@given(st.integers(0, 5), st.lists(st.tuples(st.sampled_from(["set", "use", "pop"]), KEYS)))
def test_the_latest_entries_are_kept(limit: int, steps: list[tuple[str, int]]) -> None:
    latest = Latest[int, int](limit)
    expected: list[tuple[int, int]] = []
    for value, (step, key) in enumerate(steps):
        held = [entry for entry in expected if entry[0] == key]
        others = [entry for entry in expected if entry[0] != key]
        if step == "set":
            latest[key] = value
            expected = [*others, (key, value)][-limit:] if limit else []
        elif step == "use":
            assert latest.use(key) == (held[0][1] if held else None)
            expected = others + held
        else:
            assert latest.pop(key, None) == (held[0][1] if held else None)
            expected = others
        assert list(latest.items()) == expected
