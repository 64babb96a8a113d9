"""Floor 5, the network side: libp2p host, recon and event streams, discovery, sync with peers."""
