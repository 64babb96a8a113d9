"""The Spark data source "recon": a node's event feed as a streaming or a batch table.

- `data_source`: the source itself, its readers, and `lag`
- `feed_client`: the node's feed over HTTP
- `source_options`: the source's options; `registration`: how Spark finds the source
"""
