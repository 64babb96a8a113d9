"""An S3 server with an empty bucket `bucket`, in a process of its own; prints its URL.

In the process of the tests, it could not answer while a library that waits for it holds Python's
lock. It ends when its standard input does.
"""

import sys
from threading import Lock
from typing import Any

import httpx
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

put_object = S3Response.put_object
lock = Lock()


def one_by_one(response: S3Response) -> tuple[int, dict[str, Any], str | bytes]:
    """Put an object, and none between the look whether it exists and that: as S3 does."""
    with lock:
        return put_object(response)


S3Response.put_object = one_by_one  # type: ignore[method-assign, assignment]
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
httpx.put(f"http://{host}:{port}/bucket", timeout=60.0).raise_for_status()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
