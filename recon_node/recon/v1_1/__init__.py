"""`/ceramic/recon/1.1.0`: the same reconciliation in a quarter of the bytes."""
