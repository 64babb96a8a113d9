"""The way of an event into the log, without I/O: what it must know of the log it yields (`Want`).

In reading order:

    rules      whether an event of a batch is accepted, by what the write policy says, too
    ladder     how it moves from its arrival to the feed
    records    records of events, the shares of those that cost nothing, and what is known around a
               batch
"""
