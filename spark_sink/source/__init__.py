"""The Spark data source "recon": a node's event feed as a streaming or a batch table.

In reading order:

    data_source            the source itself, its readers, and `lag`
    source_options         its options
    feed_client            the node's feed over HTTP
    served_rows            its rows as a node serves them, and how they are judged
    registration           how Spark finds the source
    snapshot_source        the source "recon_snapshot": the events of a snapshot as a table
    snapshot_registration  how Spark finds that one
"""
