"""`/ceramic/recon/0.1.0`: the protocol of the deployed network (ceramic-one).

In reading order:

    ring_session  both roles of a session
    ring_codec    its messages, and their bytes
    ring          half-open ranges of a key store
    differences   what either side refuses
    peer_ring     who can be reached where
"""
