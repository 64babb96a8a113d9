"""The keys of a store, in memory, and what may be asked of them.

In reading order:

    sha256a       the hash of a set of keys, as sums of one integer
    sums          what shows how two sets of keys differ, and whether they do
    ordered_keys  ranges of keys, and the tree of keys in order
    lookups       many keys at once: in order, or by their ids
    packed        keys that stay in a file until they are read
    kept_sums     the sums of a few ranges, kept up to date
    key_store     the tree that changes
"""
