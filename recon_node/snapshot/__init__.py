"""Snapshots of a node's events in an object store that only serves values for keys.

In reading order:

    root              the root object, which says what a snapshot is of, and pages of feed positions
    tree/             the tree of EventIds and hashes (CIP-124): pure
    packs             the objects in which events and nodes of the tree are
    objects           an object store, or a directory
    web               an object store that is a web server
    event_source      the events to make one of: a log, or a running node's store
    creating          writes a snapshot
    snapshot_reader   reads one; each node and event is checked against its CID
    syncing           fetches what a node lacks
    upkeep            lists, checks and deletes snapshots
    snapshot_service  makes snapshots on a schedule, and syncs a running node
    settings          where and how often
"""
