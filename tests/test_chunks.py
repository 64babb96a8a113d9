"""Items in chunks of bounded size."""

from hypothesis import given
from hypothesis import strategies as st

from recon_node.base.chunks import in_chunks


@given(st.lists(st.integers(0, 20)), st.integers(0, 40), st.integers(1, 8))
def test_chunks_have_few_items_and_few_bytes(sizes: list[int], most: int, number: int) -> None:
    chunks = list(in_chunks(sizes, int, most, number))
    assert [size for chunk in chunks for size in chunk] == sizes
    for chunk in chunks:
        assert 1 <= len(chunk) <= number
        assert sum(chunk) <= most or not any(chunk[:-1])  # one is larger
