"""One open connection, plain or TLS: bytes in, bytes out, never blocking."""

import contextlib
import errno
import selectors
import socket
import ssl

from rdzv_client.tls import Tls

READ_BYTES = 32 * 1024
"""Per read. Most replies have a hundred bytes, and a larger buffer is mapped and unmapped each time."""


class Connection:
    """A connected socket, and what is still to be written to it. One thread at a time.

    Args:
        sock: non-blocking.
        tls: of the client, if the socket is one of TLS.
    """

    def __init__(self, sock: socket.socket, tls: Tls | None = None) -> None:
        self.sock = sock
        self.unsent = b""
        self._tls = tls
        # TLS may need to write before it can read, or the other way round.
        self._read_wants_write = self._write_wants_read = False

    @property
    def interest(self) -> int:
        """Events to wake up for."""
        writes = (self.unsent and not self._write_wants_read) or self._read_wants_write
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)

    def readable(self, mask: int) -> bool:
        """Whether `receive` has something to do after these events."""
        return bool(mask & selectors.EVENT_READ) or self._read_wants_write

    def send(self, data: bytes) -> None:
        """Write as much as goes; the rest is `unsent`."""
        # TLS: a write that did not go is repeated with the same bytes first, which this keeps to.
        self.unsent += data
        if not self.unsent:
            return
        self._write_wants_read = False
        try:
            sent = self.sock.send(self.unsent)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return
        except ssl.SSLWantReadError:
            self._write_wants_read = True
            return
        except OSError:
            self.unsent = b""  # the read side notices and reports it
            return
        self.unsent = self.unsent[sent:]

    def receive(self) -> bytes:
        """What has arrived; empty if there is nothing yet.

        Raises:
            OSError: the connection broke or was closed; on TLS in words for people.
        """
        self._read_wants_write = self._write_wants_read = False
        try:
            data = self.sock.recv(READ_BYTES)
            # What TLS has decrypted already wakes nobody.
            while data and isinstance(self.sock, ssl.SSLSocket) and (more := self.sock.pending()):
                data += self.sock.recv(more)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        except ssl.SSLWantWriteError:
            self._read_wants_write = True
            return b""
        except ssl.SSLError as error:
            raise (error if self._tls is None else self._tls.explained(error)) from None
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        return data

    def close(self) -> None:
        """End it at once."""
        if isinstance(self.sock, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self.sock.unwrap()  # says that this is the end; never waits for an answer
        self.sock.close()
