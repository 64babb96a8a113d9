"""Sessions with peers, and the events that they fetch.

In reading order:

    sync_scheduler  when there is a session, and with whom
    push            which peers a new key is pushed to
    sessions        the life of a session, whatever its version
    reconciler      sessions of recon/1.0.0 and 1.2.0, and what they have shown of peers
    fetch           from the keys that a peer lists to events in the store
    fetch_table     which session fetches a key
    event_stream    how events are asked for, and come
    event_server    events that peers ask for
    key_rate_limit  how many keys peers may have this node look at
    rings           sessions of recon/0.1.0, with ceramic-one nodes
    ring_events     the events that travel in them
"""
