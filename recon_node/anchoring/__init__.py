"""Layer 6, anchoring: makes the time events of a node's streams.

Read `tree` first (what is anchored), then `machine` (one transaction for each tree, whatever
happens), `evm` and `authority` (who proves times), `journal` (what survives), `feed_follower`
(which events) and `anchoring_service` (all of it in a running node).
"""
