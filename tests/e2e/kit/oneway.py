"""A link that works in one direction only."""

import contextlib
import socket
import threading
from typing import Literal

Way = Literal["up", "down"]
"""`up`: what the client sends. `down`: what the server sends."""


class OneWayProxy:
    """Forwards one server. After `cut(way)` nothing passes that way, no end of a stream either, and no
    new connection comes about: a handshake needs both ways."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._cut: Way | None = None
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self, way: Way) -> None:
        self._cut = way

    def heal(self) -> None:
        self._cut = None

    def close(self) -> None:
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join(5)
        for thread in self._threads:
            thread.join(5)
        for sock in (self._listener, *self._socks):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._socks.append(near)
            if self._cut is not None:
                continue  # it hears nothing, ever
            far = socket.create_connection(self._target, timeout=5)
            far.settimeout(None)
            self._socks.append(far)
            ways: tuple[tuple[socket.socket, socket.socket, Way], ...] = (
                (near, far, "up"), (far, near, "down"),
            )  # fmt: skip
            for path in ways:
                thread = threading.Thread(target=self._pump, args=path, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _pump(self, source: socket.socket, sink: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._cut != way:
                    sink.sendall(data)
            if self._cut != way:
                sink.shutdown(socket.SHUT_WR)
