"""The way of an event into the log: pure, the log is asked by what they yield (`known.Want`).

In reading order:

    rules      whether an event of a batch is accepted
    ladder     how it moves from its arrival to the feed
    known      what is known around a batch, and what has to be known next
    records    an EventId that is held, how far it has come, and how much is kept of each kind
    judgement  what the write policy says of a batch
"""
