"""A port that stays ours until worker 0 listens on it."""

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from rdzv_client.torch import port
from rdzv_client.torch.port import ReservedPort

IP_LOCAL_PORT_RANGE = 51
"""Socket option of Linux 6.3: bounds what the kernel may choose for this socket."""


@pytest.fixture
def reserved() -> Iterator[ReservedPort]:
    held = ReservedPort()
    yield held
    held.release()


def listen(number: int, family: socket.AddressFamily, *, reuse: bool) -> socket.socket:
    """Bind and listen as another program would."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::" if family is socket.AF_INET6 else "0.0.0.0", number))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def test_it_is_a_port_that_the_kernel_chose(reserved: ReservedPort) -> None:
    assert 1024 <= reserved.port < 65536


def test_two_reservations_are_two_ports() -> None:
    held = [ReservedPort() for _ in range(20)]
    try:
        assert len({one.port for one in held}) == 20
    finally:
        for one in held:
            one.release()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_plain_bind_cannot_take_it(reserved: ReservedPort, family: socket.AddressFamily) -> None:
    with pytest.raises(OSError) as caught:
        listen(reserved.port, family, reuse=False)
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_worker_0_can_listen_on_it_beside_the_reservation(
    reserved: ReservedPort, family: socket.AddressFamily
) -> None:
    """TCPStore sets SO_REUSEADDR."""
    address = ("127.0.0.1", reserved.port)
    with (
        closing(listen(reserved.port, family, reuse=True)),
        closing(socket.create_connection(address, timeout=10)) as there,
    ):
        assert there.getpeername()[:2] == address


def test_while_it_is_only_reserved_nobody_answers_there(reserved: ReservedPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserved.port), timeout=10)


@pytest.mark.parametrize("reuse", [False, True])
def test_who_asks_for_any_port_never_gets_it(reserved: ReservedPort, reuse: bool) -> None:
    for _ in range(2000):
        with closing(socket.socket()) as sock:
            if reuse:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("", 0))
            assert sock.getsockname()[1] != reserved.port


def test_who_asks_for_any_of_this_one_port_gets_none(reserved: ReservedPort) -> None:
    """The same without luck, where the kernel can be told to choose from a range of one."""
    with closing(socket.socket()) as sock:
        only = struct.pack("=I", reserved.port | reserved.port << 16)
        try:
            sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only)
        except OSError:
            pytest.skip("the kernel has no IP_LOCAL_PORT_RANGE")
        with pytest.raises(OSError) as caught:
            sock.bind(("", 0))
        assert caught.value.errno == errno.EADDRINUSE


def test_a_released_port_can_be_taken_by_anybody() -> None:
    held = ReservedPort()
    held.release()
    held.release()
    listen(held.port, socket.AF_INET, reuse=False).close()


def test_without_ipv6_it_reserves_for_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    families: list[socket.AddressFamily] = []
    bound = port._bound

    def without_ipv6(family: socket.AddressFamily, host: str) -> socket.socket:
        families.append(family)
        if family is socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return bound(family, host)

    monkeypatch.setattr(port, "_bound", without_ipv6)
    held = ReservedPort()
    try:
        assert families == [socket.AF_INET6, socket.AF_INET]
        with pytest.raises(OSError):
            listen(held.port, socket.AF_INET, reuse=False)
        listen(held.port, socket.AF_INET, reuse=True).close()
    finally:
        held.release()


def test_no_socket_is_left_open_where_no_port_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Full(socket.socket):
        def bind(self, address: object) -> None:
            made.append(self)
            raise OSError(errno.EADDRINUSE, "no free port")

    monkeypatch.setattr(socket, "socket", Full)
    with pytest.raises(OSError, match="no free port"):
        ReservedPort()
    assert len(made) == 2
    assert all(sock.fileno() == -1 for sock in made)
