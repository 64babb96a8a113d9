"""What the store's readers ask of the log: `LogReader` has all questions.

In reading order:

    log_reader     the questions, and the threads that answer them
    reader         a connection, and what a question may see and report
    feed           rows of the feed, and where times and sort keys are in it
    columns        the same for bulk readers, column by column
    events         single events, by EventID or CID
    stream         the events of one stream, in shares
    block_index    which event holds which block
    catalogue      lists of streams, and searches by name
    undelivered    what the feed does not have, and why
"""
