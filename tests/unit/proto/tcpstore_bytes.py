"""TCPStore requests as bytes, written down independently of the product's own reader."""

import struct


def blob(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def many(keys: tuple[bytes, ...]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(map(blob, keys))


HELLO = bytes.fromhex("00cef7853c")


def set_(key: bytes, value: bytes) -> bytes:
    return b"\x01" + blob(key) + blob(value)


def cas(key: bytes, expected: bytes, desired: bytes) -> bytes:
    return b"\x02" + blob(key) + blob(expected) + blob(desired)


def get(key: bytes) -> bytes:
    return b"\x03" + blob(key)


def add(key: bytes, delta: int) -> bytes:
    return b"\x04" + blob(key) + struct.pack("<q", delta)


def check(*keys: bytes) -> bytes:
    return b"\x05" + many(keys)


def wait(*keys: bytes) -> bytes:
    return b"\x06" + many(keys)


NUM_KEYS = b"\x07"


def delete(key: bytes) -> bytes:
    return b"\x08" + blob(key)


def append(key: bytes, value: bytes) -> bytes:
    return b"\x09" + blob(key) + blob(value)


def multi_get(*keys: bytes) -> bytes:
    return b"\x0a" + many(keys)


def multi_set(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"\x0b" + struct.pack("<Q", len(pairs)) + b"".join(blob(k) + blob(v) for k, v in pairs)


CANCEL = b"\x0c"


def ping(nonce: int) -> bytes:
    return b"\x0d" + struct.pack("<I", nonce)


def push(key: bytes, value: bytes) -> bytes:
    return b"\x0e" + blob(key) + blob(value)


def pop(key: bytes) -> bytes:
    return b"\x0f" + blob(key)


def length(key: bytes) -> bytes:
    return b"\x10" + blob(key)


LIST_KEYS = b"\x11"


def barrier(key: bytes, world_size: int) -> bytes:
    return b"\x12" + blob(key) + struct.pack("<q", world_size)


def number(value: int) -> bytes:
    """An answer."""
    return struct.pack("<q", value)


YES, NO = b"\x00", b"\x01"
