"""The B#tree (CIP-124, appendices B and C): a tree of blocks that depends on a set of keys alone.

Everyone with the same keys makes the same blocks, in whatever order the keys arrived. A reader that
has most of the keys opens only the nodes whose hash differs from that of its own keys. Pure: nodes
are asked for by CID, whoever stores them.

nodes   the blocks of the tree, and where nodes end
build   makes the tree of a set of keys
update  finds where a tree differs from a set, and makes the tree of that set
"""
