"""The few calls of NCCL that the checks need, through ctypes, on torch's tensors.

`ncclUniqueId` is passed by value, so it has to be a structure: an array would decay to a pointer.
"""

import ctypes
import os
import threading
import time
from typing import Any

from rdzv_proto import limits

FLOAT32, SUM = 7, 0
IN_PROGRESS = 7
CONFIG_MAGIC = 0xCAFEBEEF
CONFIG_VERSION = 21_400
"""The first version of the configuration: `blocking` is its only field, later ones get their defaults."""

INIT_S = 30.0

POLL_S = 0.005
"""Between two looks at an init that does not block."""


class NcclError(Exception):
    """A call failed."""


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * limits.NCCL_ID_BYTES)]  # type: ignore[mutable-override]


class Config(ctypes.Structure):
    _fields_ = [  # type: ignore[mutable-override]
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("unused", ctypes.c_int),
    ]


class Nccl:
    """One library."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._lib.ncclGetErrorString.restype = ctypes.c_char_p
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        self.version = number.value

    def init(self, nranks: int, ids: list[bytes], rank: int) -> "Comm":
        """Blocking, with one id or several."""
        handle = ctypes.c_void_p()
        if len(ids) == 1:
            self._call("ncclCommInitRank", ctypes.byref(handle), nranks, _id(ids[0]), rank)
        else:
            many = (UniqueId * len(ids))(*map(_id, ids))
            self._call(
                "ncclCommInitRankScalable", ctypes.byref(handle), nranks, rank, len(ids), many, None
            )
        return Comm(self, handle, nranks, rank)

    def begin(self, nranks: int, raw: bytes, rank: int) -> "Comm":
        """Not blocking: `Comm.wait` says when it stands, and it can be aborted before."""
        handle = ctypes.c_void_p()
        config = Config(ctypes.sizeof(Config), CONFIG_MAGIC, CONFIG_VERSION, 0, -(2**31))
        code = self._lib.ncclCommInitRankConfig(
            ctypes.byref(handle), nranks, _id(raw), rank, ctypes.byref(config)
        )
        if code not in (0, IN_PROGRESS):
            raise NcclError(self._text("ncclCommInitRankConfig", code))
        return Comm(self, handle, nranks, rank)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code != 0:
            raise NcclError(self._text(name, code))

    def _text(self, name: str, code: int) -> str:
        return f"{name}: code {code}, {self._lib.ncclGetErrorString(code).decode()}"


class Comm:
    """One communicator."""

    def __init__(self, nccl: Nccl, handle: ctypes.c_void_p, nranks: int, rank: int) -> None:
        self._nccl, self._handle = nccl, handle
        self.nranks, self.rank = nranks, rank
        self._aborted = False
        self._lock = threading.Lock()
        """An abort frees the communicator: nobody may be in a call with it."""

    def wait(self, timeout_s: float = INIT_S) -> None:
        """Until it stands.

        Raises:
            NcclError: it failed, was aborted, or took too long.
        """
        ends_at = time.monotonic() + timeout_s
        state = ctypes.c_int(IN_PROGRESS)
        while state.value == IN_PROGRESS:
            if time.monotonic() > ends_at:
                raise NcclError(f"init takes longer than {timeout_s:g} s")
            self._use("ncclCommGetAsyncError", self._handle, ctypes.byref(state))
            time.sleep(POLL_S)
        if state.value != 0:
            raise NcclError(self._nccl._text("init", state.value))

    def all_reduce(self, source: Any, target: Any, stream: int) -> None:
        """Sum of float32 tensors; only begins it."""
        self._use(
            "ncclAllReduce",
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_size_t(source.numel()),
            FLOAT32,
            SUM,
            self._handle,
            ctypes.c_void_p(stream),
        )

    def abort(self) -> bool:
        """Get everybody out of it, from any thread; False if that was done before."""
        with self._lock:
            if self._aborted:
                return False
            self._aborted = True
            self._nccl._call("ncclCommAbort", self._handle)
            return True

    def aborted(self) -> bool:
        """Nothing can be done with it any more."""
        return self._aborted

    def destroy(self) -> None:
        """All its work is done."""
        self._use("ncclCommDestroy", self._handle)

    def _use(self, name: str, *arguments: Any) -> None:
        with self._lock:
            if self._aborted:
                raise NcclError("aborted")
            self._nccl._call(name, *arguments)


def _id(raw: bytes) -> UniqueId:
    return UniqueId.from_buffer_copy(raw)
