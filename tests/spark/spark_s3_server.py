"""An S3 server with an empty bucket `bucket`, in a process of its own; prints its URL.

In the process of the tests, it could not answer while a library that waits for it holds Python's
lock. It ends when its standard input does.
"""

import sys

import httpx
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
httpx.put(f"http://{host}:{port}/bucket").raise_for_status()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
