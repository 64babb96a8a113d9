"""Fair shares of what is scarce.

slots     connections, requests and sessions of which there are few, and rate limits
turns     computations, by address block in turn
pacing    delays after failures
"""
