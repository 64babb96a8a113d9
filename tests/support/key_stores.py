"""Key stores whose nodes are small: few keys make a deep tree."""

from collections.abc import Iterable

from recon_node.recon.keys.key_store import FAN_OUT, LEAF_SIZE, KeyStore


def small_store(
    keys: Iterable[bytes] = (), *, leaf_size: int = LEAF_SIZE, fan_out: int = FAN_OUT
) -> KeyStore:
    """A key store with at most so many keys in a leaf, and children of a node; at least 2."""
    sizes = {"__slots__": (), "_leaf_size": leaf_size, "_fan_out": fan_out}
    small: type[KeyStore] = type("SmallStore", (KeyStore,), sizes)
    return small(keys)
