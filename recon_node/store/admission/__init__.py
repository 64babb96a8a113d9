"""The way of an event into the log: pure, the log is asked by what they yield (`records.Want`).

In reading order:

    rules      whether an event of a batch is accepted
    ladder     how it moves from its arrival to the feed
    records    an EventId that is held, how far it has come, how much is kept of each kind; what is
               known around a batch, what has to be known next, and what the write policy says of it
"""
