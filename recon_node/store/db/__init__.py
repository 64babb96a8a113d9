"""The SQLite file, open for writing. In reading order:

log_schema   the file and its tables, and what survives what
event_table  the table of events, and how rows of earlier versions come into it
log          the log: what changes it, each in one transaction, and what is written in them
settling     what moves the events that wait: lookups, releases
rows         events as rows; loads what the rules have to know
blocks       how a CAR is stored, and blocks that events share
releases     what moved, and has waiters that have not been looked at
proofs       which anchors await their lookup, and what it led to
doubts       proofs that the chain does not have, and what the model ring lacks for them
evictable    what of these may make room for time events
statements   what time events state
saved_keys   the key store of the last run and its sums, and what changed since
migrations   from logs of earlier versions
sql          statements that are too large for one go, and what SQLite reports
"""
