"""Sockets to listen on."""

import socket

import pytest

from rdzv_server.shell.listen import ListenError, is_loopback, listeners


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def test_b06a_a_port_in_use_is_one_sentence_with_address_and_port() -> None:
    (first,) = listeners("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, pytest.raises(ListenError, match=rf"127.0.0.1:{port}: Address already in use"):
        listeners("127.0.0.1", port)


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(ListenError, match="Cannot assign requested address"):
        listeners("192.0.2.1", 0)


def test_a_name_that_does_not_resolve_is_refused() -> None:
    for call in (lambda: listeners("no.such.host.invalid", 0), lambda: is_loopback("no.invalid")):
        with pytest.raises(ListenError, match="invalid"):
            call()


@needs_ipv6
def test_b06e_the_ipv6_wildcard_listens_on_ipv4_too() -> None:
    (sock,) = listeners("::", 0)
    port = sock.getsockname()[1]
    with sock:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()


def test_a_name_with_several_addresses_gets_one_port_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(host: str, port: int, **kw: object) -> list[object]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port))
            for h in ("127.0.0.1", "127.0.0.2", "127.0.0.1")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    sockets = listeners("both", 0)
    assert len(sockets) == 2
    assert len({s.getsockname()[1] for s in sockets}) == 1
    for sock in sockets:
        sock.close()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("0.0.0.0", False), ("10.0.0.1", False)],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
