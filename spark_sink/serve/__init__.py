"""The tables for Arrow Flight SQL clients: `spark-sink serve`.

A call goes down this list, and its answer up:

- `server`: gRPC, the token, TLS
- `service`: what each call means; `metadata`, `prepared`: tables and types, prepared statements
- `workers`: how many queries run; `worker`: the process of each
- `database`: DuckDB over the tables; `statement`: what a client asks; `feed`: rows to come;
  `views`: what the tables look like to clients
- `messages`, `ipc`: the bytes; `errors`
"""
