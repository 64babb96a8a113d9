"""Items divided into chunks of bounded size."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def in_chunks(
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    most_bytes: int,
    most_items: int = sys.maxsize,
) -> Iterator[list[Item]]:
    """Divide items, lazily, into chunks of up to `most_bytes`, or one larger item."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if (size and size + item_size > most_bytes) or len(chunk) >= most_items:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += item_size
    if chunk:
        yield chunk
