"""Proxies that treat connections badly: swallow replies, reset, forget silent ones."""

import contextlib
import random
import socket
import struct
import threading
import time

from rdzv_proto import codec, limits
from rdzv_proto.framing import FrameBuffer
from rdzv_proto.messages import PUSHES

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER so that the kernel ends the connection with a reset."""


class Path:
    """One connection through a proxy, with a thread for each direction."""

    def __init__(self, proxy: "FlakyProxy", near: socket.socket, far: socket.socket) -> None:
        self.proxy, self.near, self.far = proxy, near, far
        self.used_at = time.monotonic()
        self.forgotten = False
        self.frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        """From the server."""
        self._resetting = False
        self._threads = [
            threading.Thread(target=self._pump, args=way, daemon=True)
            for way in ((near, far, self._up), (far, near, self._down))
        ]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """End both sides."""
        for sock in (self.near, self.far):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End both sides with a reset."""
        self._resetting = True
        for sock in (self.near, self.far):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RD)  # wakes the thread; says nothing to the other side
        self.close()

    def close(self) -> None:
        if not self._resetting:
            self.cut()
        for thread in self._threads:
            thread.join(5)
        self.near.close()
        self.far.close()

    def _pump(self, source: socket.socket, sink: socket.socket, change: object) -> None:
        assert callable(change)
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and not self._resetting:
                sink.sendall(change(data))
            if not self._resetting:
                sink.shutdown(socket.SHUT_WR)

    def _up(self, data: bytes) -> bytes:
        return self.proxy.passes(self, data)

    def _down(self, data: bytes) -> bytes:
        return self.proxy.passes(self, self.proxy.replies(self, data))


class FlakyProxy:
    """Forwards one server; subclasses say what goes wrong."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.paths: list[Path] = []
        self.losses = 0
        """Connections that were treated badly."""
        self._over = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(5)
        self._listener.close()
        for path in self.paths:
            path.close()

    def opened(self, path: Path) -> None:
        """A connection was made."""

    def passes(self, path: Path, data: bytes) -> bytes:
        """What gets through of some bytes of either direction."""
        return data

    def replies(self, path: Path, data: bytes) -> bytes:
        """What gets through of the server's bytes."""
        return data

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                continue
            far.settimeout(None)
            path = Path(self, near, far)
            self.paths.append(path)
            self.opened(path)


class SwallowingProxy(FlakyProxy):
    """Swallows every so-manieth reply, and closes that connection: the request was carried out, and
    nobody was told."""

    def __init__(self, host: str, port: int, every: int) -> None:
        self._every, self._replies = every, 0
        self._lock = threading.Lock()
        super().__init__(host, port)

    def replies(self, path: Path, data: bytes) -> bytes:
        path.frames.feed(data)
        through = b""
        while (body := path.frames.pop()) is not None:
            _, message = codec.decode_answer(body)
            if message.op not in PUSHES and self._swallows():
                path.cut()
                return through
            through += len(body).to_bytes(4, "big") + body
        return through

    def _swallows(self) -> bool:
        with self._lock:
            self._replies += 1
            lost = self._replies % self._every == 0
            self.losses += lost
        return lost


class ResettingProxy(FlakyProxy):
    """Resets every connection after a random time."""

    def __init__(self, host: str, port: int, seed: int, low_s: float, high_s: float) -> None:
        self._rng, self._between = random.Random(seed), (low_s, high_s)
        super().__init__(host, port)

    def opened(self, path: Path) -> None:
        after_s = self._rng.uniform(*self._between)
        threading.Thread(target=self._reset_later, args=(path, after_s), daemon=True).start()

    def _reset_later(self, path: Path, after_s: float) -> None:
        if not self._over.wait(after_s):
            self.losses += 1
            path.reset()


class ForgettingProxy(FlakyProxy):
    """Forgets a connection that was silent for a while, as firewalls do: nothing passes any more, and
    neither side is told."""

    def __init__(self, host: str, port: int, silent_s: float) -> None:
        self._silent_s = silent_s
        super().__init__(host, port)

    def passes(self, path: Path, data: bytes) -> bytes:
        now = time.monotonic()
        if not path.forgotten and now - path.used_at > self._silent_s:
            path.forgotten = True
            self.losses += 1
        path.used_at = now
        return b"" if path.forgotten else data
