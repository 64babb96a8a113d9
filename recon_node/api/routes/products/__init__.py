"""What a node does beside keeping streams. In reading order:

anchors         how anchoring stands, and when an event was anchored
anchor_service  Ceramic's anchor service, for other nodes
dag             DAGs, and the publishes of an identifier
tangles         tangles of documents
snapshots       the sync from a snapshot
"""
