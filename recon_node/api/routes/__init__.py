"""The handlers of the HTTP API, one module a group of paths. In reading order:

events         adds events, and reads single ones
feed           the events that are delivered, in the order of their positions
arrow          the same for bulk readers, as Arrow
streams        the state of a stream
stream_events  the events of a stream, the state after each, and a drawing
listings       lists of streams and models, and the search
undelivered    what the feed does not have, and why
interests      which streams the node wants
node_info      the node and its peers
kubo           what kubo's API has of it
pages          pages for people
products/      what a node does beside keeping streams: anchors, DAGs, snapshots, tangles
"""
