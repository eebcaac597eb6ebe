"""A TCP proxy that can be frozen (no FIN, no data) and let go again."""

import contextlib
import socket
import threading


class Proxy:
    """Forwards one server. Connections made before a freeze pass nothing while it lasts."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self._open = threading.Event()
        self._open.set()
        self._socks: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def freeze(self) -> None:
        """Hold everything back, ends of streams too."""
        self._open.clear()

    def drop(self) -> None:
        """Let go and close every connection."""
        self._open.set()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """No new connections first: a dropped client comes back at once."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(5)
        self._listener.close()
        self.drop()
        for sock in self._socks:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                near.close()  # there is nobody now; the next one may be luckier
                continue
            far.settimeout(None)
            self._socks += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
            self._open.wait()
            sink.shutdown(socket.SHUT_WR)
