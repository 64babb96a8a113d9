"""The way of an event into the log, without I/O: what it must know of the log it yields (`Want`).

In reading order:

    rules      whether an event of a batch is accepted
    ladder     how it moves from its arrival to the feed
    records    the records of events and their states, the shares of events that cost nothing, what
               is known around a batch and wanted next, and what the write policy says of it
"""
