"""What can be seen of a NCCL unique id from outside: its size, its root's address, its fingerprint.

An id is a secret: its first eight bytes are all that guards the bootstrap. Nothing here puts them into
a text; people are shown the fingerprint and the address of the root.
"""

import hashlib
import ipaddress
from dataclasses import dataclass

from rdzv_proto import limits
from rdzv_proto.errors import ErrorCode
from rdzv_server.core.refusal import Refused

COMM_ID_MAGIC = 0x0280028002800280
"""What `ncclGetUniqueId` returns as magic when NCCL_COMM_ID is set; then nobody has started a root."""

_AF_INET, _AF_INET6 = 2, 10
"""As Linux numbers them; the id holds a `sockaddr` of Linux whatever the server runs on."""


@dataclass(frozen=True, slots=True)
class Root:
    """Where the ranks of a communicator report, as far as it can be read."""

    host: str = ""
    """Empty: of a family that is not known here."""
    port: int = 0

    @property
    def known(self) -> bool:
        """It could be read."""
        return bool(self.host)

    @property
    def loopback(self) -> bool:
        """Only processes on the same host can reach it."""
        return self.known and ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if not self.known:
            return "root of an unknown address family"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def digest(raw: bytes) -> bytes:
    """Tells ids apart without being one."""
    return hashlib.sha256(raw).digest()


def show(raw: bytes) -> str:
    """For the log: fingerprint and root."""
    return f"sha256 {digest(raw).hex()[:8]} at {root_of(raw)}"


def root_of(raw: bytes) -> Root:
    """The root's address in an id of the right size."""
    family = int.from_bytes(raw[8:10], "little")
    port = int.from_bytes(raw[10:12], "big")
    if family == _AF_INET:
        return Root(str(ipaddress.IPv4Address(raw[12:16])), port)
    if family == _AF_INET6:
        address = ipaddress.IPv6Address(raw[16:32])
        return Root(str(address.ipv4_mapped or address), port)
    return Root()


def check(raw: bytes) -> None:
    """Refuse what cannot be an id, or leads nowhere for certain.

    Raises:
        Refused: MALFORMED, UNROUTABLE_ROOT; neither text holds a byte of it.
    """
    if len(raw) != limits.NCCL_ID_BYTES:
        raise Refused(
            ErrorCode.MALFORMED,
            f"a unique id has {limits.NCCL_ID_BYTES} bytes, this one has {len(raw)}",
            "Hand over the whole ncclUniqueId, as raw bytes.",
        )
    if not any(raw):
        raise Refused(
            ErrorCode.MALFORMED,
            f"the unique id is {limits.NCCL_ID_BYTES} zero bytes: it was never minted",
            "Look at the return code of ncclGetUniqueId on the minter.",
        )
    if int.from_bytes(raw[:8], "little") == COMM_ID_MAGIC:
        raise Refused(
            ErrorCode.UNROUTABLE_ROOT,
            "NCCL_COMM_ID is set on the minter: its unique id names that address and nobody "
            "listens there",
            "Unset NCCL_COMM_ID on the minter (also look into nccl.conf).",
        )
    root = root_of(raw)
    if root.known and root.port == 0:
        raise Refused(
            ErrorCode.UNROUTABLE_ROOT,
            f"the unique id's root has port 0 (at {root.host}): nobody listens there",
            "Mint the id with ncclGetUniqueId on the minter.",
        )
