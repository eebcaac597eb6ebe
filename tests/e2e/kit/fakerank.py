"""A rank of a NCCL communicator without a GPU: it speaks the bootstrap protocol to the real root that
`ncclGetUniqueId` started, learns its successor there, and closes the ring with the others.

What travels: each rank sends the root a header (magic, type, size) and who it is, on a connection of
its own; the root connects back to the rank's listener with where its successor listens. The first rank of
each root's block reports to the root before as well, as the successor of that block's last rank.
"""

import contextlib
import hashlib
import socket
import struct

from tests.e2e.kit import leaks

HEADER = struct.Struct("<Qii")
"""magic, type, size of what follows."""

TYPE_BOOTSTRAP = 1
ADDRESS_BYTES = 28
CONNECT_BYTES = 128

OFFSET_SINCE = 22_900
"""From this version on the report has one more number."""


class RingError(Exception):
    """The ring did not close."""


def root_address(raw: bytes) -> tuple[str, int]:
    """Where an id's root listens (IPv4)."""
    (port,) = struct.unpack_from(">H", raw, 10)
    return socket.inet_ntoa(raw[12:16]), port


def block(rank: int, nranks: int, nroots: int) -> tuple[int, int]:
    """A rank's root and the first rank of that root's block."""
    for root in reversed(range(nroots)):
        size, larger = divmod(nranks, nroots)
        first = root * size + min(root, larger)
        if rank >= first:
            return root, first
    raise AssertionError("root 0 begins at rank 0")


class FakeRank:
    """One rank.

    Args:
        rank: in the communicator.
        nranks: of the communicator.
        ids: its unique ids, in order.
        version: of the NCCL that minted them.
        timeout_s: of each step.
    """

    def __init__(
        self, rank: int, nranks: int, ids: list[bytes], version: int, timeout_s: float = 10
    ) -> None:
        self.rank, self.nranks, self.ids = rank, nranks, ids
        leaks.note(*ids)
        self._offset = b"\0\0\0\0" if version >= OFFSET_SINCE else b""
        self._timeout_s = timeout_s
        host, _ = root_address(ids[0])
        self._answer = self._listen(host)
        self._ring = self._listen(host)

    def join(self) -> int:
        """Report to the root, close the ring, pass a number all the way round.

        Returns:
            How many ranks the number met: all of them.

        Raises:
            RingError: the root or a neighbour did not do its part in time.
        """
        try:
            with self._answer, self._ring:
                root, first = block(self.rank, self.nranks, len(self.ids))
                self._report(root, self.rank)
                if len(self.ids) > 1 and self.rank == first:
                    before = (self.rank - 1) % self.nranks
                    self._report(block(before, self.nranks, len(self.ids))[0], before + 1)
                return self._close_ring(self._successor(root))
        except OSError as error:
            raise RingError(f"rank {self.rank}: {error}") from error

    def _listen(self, host: str) -> socket.socket:
        listener = socket.create_server((host, 0), backlog=8)
        listener.settimeout(self._timeout_s)
        return listener

    def _report(self, root: int, as_rank: int) -> None:
        raw = self.ids[root]
        who = struct.pack("<iiii", as_rank, self.nranks, root, len(self.ids)) + self._offset
        body = who + _address(self._answer) + _address(self._ring).ljust(CONNECT_BYTES, b"\0")
        magic = int.from_bytes(raw[:8], "little")
        with socket.create_connection(root_address(raw), self._timeout_s) as sock:
            sock.sendall(HEADER.pack(magic, TYPE_BOOTSTRAP, len(body)) + body)

    def _successor(self, root: int) -> tuple[str, int]:
        sock, _ = self._answer.accept()
        with sock:
            sock.settimeout(self._timeout_s)
            magic, kind, size = HEADER.unpack(_read(sock, HEADER.size))
            if magic != int.from_bytes(self.ids[root][:8], "little") or kind != TYPE_BOOTSTRAP:
                raise RingError(f"rank {self.rank}: somebody else than its root answered")
            told = _read(sock, size)
        (port,) = struct.unpack_from(">H", told, 2)
        return socket.inet_ntoa(told[4:8]), port

    def _close_ring(self, successor: tuple[str, int]) -> int:
        """A stamp goes round once: rank 0 starts it, each rank adds itself, and its value on arrival
        tells which ranks it has passed, in which order."""
        with contextlib.closing(socket.create_connection(successor, self._timeout_s)) as after:
            before, _ = self._ring.accept()
            with before:
                before.settimeout(self._timeout_s)
                if self.rank == 0:
                    after.sendall(_stamp(0, b""))
                stamp = _read(before, 32)
                if self.rank:
                    after.sendall(_stamp(self.rank, stamp))
        passed = self.nranks if self.rank == 0 else self.rank
        expected = b""
        for rank in range(passed):
            expected = _stamp(rank, expected)
        if stamp != expected:
            raise RingError(f"rank {self.rank}: the ring is in another order")
        return self.nranks


def _stamp(rank: int, before: bytes) -> bytes:
    return hashlib.sha256(before + struct.pack("<i", rank)).digest()


def _address(listener: socket.socket) -> bytes:
    host, port = listener.getsockname()[:2]
    packed = struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host)
    return packed.ljust(ADDRESS_BYTES, b"\0")


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise RingError(f"the connection ended after {len(data)} of {size} bytes")
        data += more
    return data
