"""The DAG Replication & Publishing Protocol, without I/O; in reading order.

dag_operations  what changes a DAG or publishes one: append, join, publish
replica         a log of operations, and its picture
shards          a DAG cut into CAR files
publishing      the publishes of an identifier, in the order that all nodes agree on
ucan            the tokens that permit them
"""
