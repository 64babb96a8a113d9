"""`/ceramic/recon/0.1.0`: the protocol of the deployed network (ceramic-one)."""
