"""What can be read of a unique id, and what is refused as one."""

import pytest

from rdzv_proto.errors import ErrorCode
from rdzv_server.core.nccl import unique_id
from rdzv_server.core.refusal import Refused
from tests import ids


def refusal(raw: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        unique_id.check(raw)
    return caught.value


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("10.0.0.1", "10.0.0.1:4711"),
        ("fd00::7", "[fd00::7]:4711"),
        ("::ffff:10.0.0.1", "10.0.0.1:4711"),
    ],
)
def test_the_address_of_the_root_is_read(host: str, shown: str) -> None:
    raw = ids.unique_id(1, host)
    assert str(unique_id.root_of(raw)) == shown
    unique_id.check(raw)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False)]
)
def test_a_loopback_root_is_known(host: str, loopback: bool) -> None:
    assert unique_id.root_of(ids.unique_id(1, host)).loopback is loopback


def test_an_unknown_address_family_passes() -> None:
    raw = bytes(range(1, 129))
    unique_id.check(raw)
    root = unique_id.root_of(raw)
    assert not root.known
    assert not root.loopback
    assert "unknown address family" in str(root)


@pytest.mark.parametrize("size", [0, 127, 129])
def test_b35_a_wrong_size_is_refused_with_both_sizes(size: int) -> None:
    refused = refusal(b"x" * size)
    assert refused.code is ErrorCode.MALFORMED
    assert "128 bytes" in refused.message
    assert f"has {size}" in refused.message


def test_zeros_are_no_id() -> None:
    assert refusal(bytes(128)).code is ErrorCode.MALFORMED


def test_the_magic_of_nccl_comm_id_is_refused_with_the_hint() -> None:
    raw = unique_id.COMM_ID_MAGIC.to_bytes(8, "little") + ids.unique_id()[8:]
    refused = refusal(raw)
    assert refused.code is ErrorCode.UNROUTABLE_ROOT
    assert "NCCL_COMM_ID" in refused.action


def test_port_0_is_refused() -> None:
    refused = refusal(ids.unique_id(1, port=0))
    assert refused.code is ErrorCode.UNROUTABLE_ROOT
    assert "port 0" in refused.message


def test_s22_what_is_shown_of_an_id_is_its_fingerprint_and_its_root() -> None:
    raw = ids.unique_id()
    shown = unique_id.show(raw)
    assert shown == f"sha256 {unique_id.digest(raw).hex()[:8]} at 10.0.0.1:4711"
    assert raw[:8].hex() not in shown
