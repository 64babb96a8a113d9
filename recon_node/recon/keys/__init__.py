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

What a session says of keys is made of their digests:

    digest       the sha2-256 of a key; `digests` are those of neighbouring keys, end to end
    lanes        the sum of digests, with their number on top, in one integer (sha256a)
    Sha256a      the lanes as 32 bytes: what 1.0.0 and 0.1.0 say of a range
    fingerprint  16 bytes made of the lanes: what 1.2.0 says of a gap (coded/messages.py)
    id           8 bytes of a digest: what 1.2.0 says of a key
    sketch       made of ids: it shows how two sets differ
    LtHash       a hash of a set that nobody can steer; its digest is what 1.2.0 says of a range
    sum          a sketch or an LtHash, as it changes with its set (kept_sums)
"""
