"""Socket addresses for people."""

import pytest

from rdzv_server.shell.addresses import host_of, shown


@pytest.mark.parametrize(
    ("address", "host", "text"),
    [
        (("10.0.0.1", 29500), "10.0.0.1", "10.0.0.1:29500"),
        (("::ffff:10.0.0.1", 29500, 0, 0), "10.0.0.1", "10.0.0.1:29500"),
        (("fe80::1", 29500, 0, 2), "fe80::1", "[fe80::1]:29500"),
        (None, "", ":0"),
        ((), "", ":0"),
        ("", "", ":0"),
    ],
)
def test_addresses(address: object, host: str, text: str) -> None:
    assert host_of(address) == host
    assert shown(address) == text
