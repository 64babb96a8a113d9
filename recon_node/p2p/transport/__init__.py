"""libp2p: a hardened host, and the streams and frames on it.

In reading order:

    host                the host of the node, whose peers have ids in base58
    hardening           the defects of py-libp2p, and the swarm without them
    guarded_connection  a connection, and the memory that peers make this node hold
    framing             streams, and the frames on them
    dialler             what an address stands for, and why nobody answers there
    addresses           multiaddrs: which can be dialled
    identity            the node's key
    private_network     connections that only those with the swarm key can read
"""
