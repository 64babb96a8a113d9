"""`/ceramic/recon/1.0.0`: CIP-124 as it is written."""
