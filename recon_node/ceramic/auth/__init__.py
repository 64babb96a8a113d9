"""Who may write: DIDs and keys, signatures, capabilities (CACAO) and the wallets that sign them."""
