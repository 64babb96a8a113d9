"""Layer 6, anchoring: makes the time events of a node's streams. In reading order:

tree               what is anchored: a Merkle tree
authority          who proves times, and the development clock
machine            one transaction for each tree, whatever happens: pure decisions
evm                the authority of EVM chains, which carries them out
signer             the key that signs transactions
journal            what must not be forgotten, on disk
feed_follower      which events are to be anchored
anchoring_service  all of it in a running node
settings           which streams, by which authority, how often
"""
