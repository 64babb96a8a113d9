"""The tables for Arrow Flight SQL clients: `spark-sink serve`.

A call goes down this list, and its answer up:

- `flight_server`: gRPC, the address, the token, TLS, metrics
- `flight_sql`: what each call means, prepared statements; `metadata`: tables, types, the server
- `query_turns`: whose query runs; `query_worker`: the process of each
- `database`: DuckDB over the tables, as clients see them; `served_feed`: rows to come
- `statement`, `allowed`: what a client asks, and may ask
- `flight_messages`, `ipc`: the bytes
"""
