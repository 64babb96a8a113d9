"""Floor 6, anchoring: makes the time events of a node's streams.

Read `tree` first (what is anchored).
"""
