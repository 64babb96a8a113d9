"""The set: keys, their hash (Sha256a), ranges, and the B+ tree that hashes any range of them."""
