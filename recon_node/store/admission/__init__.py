"""The way of an event into the log, without I/O: what it must know of the log it yields (`Want`).

In reading order:

    rules      whether an event of a batch is accepted, by what the write policy says, too
    ladder     how it moves from its arrival to the feed
    checks     what is checked on the way, and what is wrong then
    records    records of events, and what is known around a batch
    shares     the room for events that cost their maker nothing
"""
