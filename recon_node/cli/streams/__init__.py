"""The commands that read and write streams and events.

In reading order:

    stream_commands  `stream`, and what the commands that write share
    stream_drawing   `stream show`
    model_commands   `model`, and `stream list`
    tangle_commands  `tangle`: threads of many authors
    event_commands   `events` and `feed`
    event_file       reads the events of a file
    sending          sends them, each after everything it depends on
    key_commands     `key`
"""
