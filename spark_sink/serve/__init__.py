"""The tables for Arrow Flight SQL clients: `spark-sink serve`.

A call goes down this list, and its answer up:

    flight_server    gRPC, the address, the token, TLS, metrics
    flight_sql       what each call means, prepared statements
    metadata         tables, types, the server
    query_turns      whose query runs
    query_worker     the process of each query
    database         DuckDB over the tables, as clients see them
    statement        what a client asks
    allowed          what it may ask
    served_feed      rows to come
    ipc              Arrow data as bytes
    flight_messages  Flight's messages as bytes
"""
