"""The commands that read and write streams and events.

In reading order:

    stream   `stream` and `model`
    tangle   `tangle`: threads of many authors
    events   `events` and `feed`
    sending  reads the events of a file, and sends them
"""
