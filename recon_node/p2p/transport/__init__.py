"""libp2p: the host, its hardening, and the streams and frames on it."""
