"""The keys of a store, in memory, and what may be asked of them.

In reading order:

    sha256a       the hash of a set of keys, as sums of one integer
    key_hashes    the id of a key, and the LtHash of a set of keys
    sketch        what shows how two sets of keys differ
    ordered_keys  ranges of keys, and the tree of keys in order
    lookups       many keys at once: in order, or by their ids
    packed        keys that stay in a file until they are read
    kept_sums     the sums of a few ranges, kept up to date
    key_store     the tree that changes

Messages have values that are made of the digests of keys:

    digest       the sha2-256 of a key; `digests` are those of neighbouring keys, end to end
    lanes        the sum of digests, with their number on top, in one integer (sha256a)
    Sha256a      the lanes as 32 bytes: the hash of a range in 1.0.0 and 0.1.0
    fingerprint  16 bytes made of the lanes: the hash of a gap in 1.2.0 (coded/messages.py)
    id           8 bytes of a digest: it stands for a key in 1.2.0
    sketch       made of ids: it shows how two sets differ
    LtHash       a hash of a set that nobody can steer: its digest closes a session of 1.2.0
    sum          a sketch or an LtHash, as it changes with its set (kept_sums)
"""
