"""Trees in memory, for tests."""

from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyStore
from recon_node.snapshot.tree.build import build
from recon_node.snapshot.tree.nodes import Root
from recon_node.snapshot.tree.update import TreeChange, differing_leaves, matcher, update

T = TypeVar("T")

EVERYTHING = [KeyRange(b"", b"\xff" * 64)]


class Blocks(dict[CID, bytes]):
    """The blocks of trees; counts what is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[CID, bytes] = {}
        self.waves: list[int] = []

    def answer(self, steps: Generator[Sequence[CID], None, T]) -> T:
        """Run a generator of the tree, fetching what it asks for."""
        self.seen.clear()
        self.waves.clear()
        while True:
            try:
                wanted = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            assert wanted
            assert not self.seen.keys() & set(wanted), "fetched twice"
            self.waves.append(len(wanted))
            self.seen.update((cid, self[cid]) for cid in wanted)

    def build(self, keys: Iterable[bytes]) -> Root | None:
        steps = build(sorted(keys))
        while True:
            try:
                new = next(steps)
            except StopIteration as end:
                root: Root | None = end.value
                return root
            assert new.link.cid.matches(new.block)
            self[new.link.cid] = new.block

    def update(self, root: Root | None, keys: Iterable[bytes]) -> tuple[Root | None, int]:
        """Update a tree to a set; return the new root and the number of new nodes."""
        if root is None:
            before = len(self)
            return self.build(keys), len(self) - before
        store = KeyStore(keys)
        leaves = self.answer(differing_leaves(root.link, matcher(store, EVERYTHING), self.seen))
        changes = [
            TreeChange(branch.link.lower, len(leaf.keys), list(store.keys(branch.bounds)))
            for branch, leaf in leaves
        ]
        new_root, made = self.answer(update(root, changes, self.seen))
        self.update_blocks(made)
        return new_root, len(made)

    def update_blocks(self, made: Iterable[object]) -> None:
        for new in made:
            self[new.link.cid] = new.block  # type: ignore[attr-defined]
