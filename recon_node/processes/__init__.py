"""Processes that work for the node, one request at a time each, over pipes.

    request   u32 size, u8 kind, then 0: marshal of a value; 1: the value, which is bytes
    answer    the same

A first answer, an empty list, says that the process is ready. A process ends when its standard
input does: however the node dies, the pipe closes. Signals to the whole process group (Ctrl-C, a
service manager's SIGTERM) are left to the node. `marshal` needs the same Python version at both
ends, which they have, and a trusted peer: neither end reads such bytes from anyone else.

process  what runs in one, and how its owner sees it
pool     processes that are started as they are needed
"""
