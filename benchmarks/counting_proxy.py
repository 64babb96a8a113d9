"""A proxy between two nodes that counts the bytes of their TCP connections."""

from __future__ import annotations

import socket
import threading


class Proxy:
    """A TCP port on loopback that passes everything on to another, and counts it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = 0
        """Bytes towards the port."""
        self.down = 0
        """Bytes that it sent."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections; those that exist end with their sockets."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            for source, sink, is_up in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, is_up), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        try:
            while data := source.recv(256 * 1024):
                # Counted first: whoever has received the bytes may ask for the count at once.
                if is_up:
                    self.up += len(data)
                else:
                    self.down += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            sink.close()
