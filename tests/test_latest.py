"""Bounded dictionaries against lists of their entries, the oldest first."""

from hypothesis import given
from hypothesis import strategies as st

from recon_node.base.latest import Latest, Remembered

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


PUTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 9), st.booleans(), st.integers(0, 3)), max_size=40
)


@given(PUTS, st.integers(1, 20), st.integers(1, 8))
def test_what_is_remembered_is_what_a_list_would_hold(puts, limit, lifetime):
    now = 0
    remembered = Remembered[int, int](
        limit, lifetime=lifetime, clock=lambda: now, weigh=lambda value: value
    )
    kept: list[tuple[int, int, int]] = []  # since, key, value; the oldest first
    for key, value, renew, later in puts:
        now += later
        live = [entry for entry in kept if entry[0] > now - lifetime]
        known = [since for since, entry_key, _ in live if entry_key == key]
        kept = [entry for entry in kept if entry[1] != key]
        kept.append((known[0] if known and not renew else now, key, value))
        while sum(entry[2] for entry in kept) > limit and len(kept) > 1:
            del kept[0]
        remembered.put(key, value, renew=renew)
        live = [entry for entry in kept if entry[0] > now - lifetime]
        assert list(remembered.items()) == [(entry_key, value) for _, entry_key, value in live]
        for number in range(7):
            assert remembered.get(number, None) == dict(remembered.items()).get(number)
        kept = live if len(remembered) == len(live) else kept
