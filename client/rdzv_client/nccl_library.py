"""Finding NCCL and minting unique ids with it. Only ranks that were elected to mint come here.

A copy that the process uses already is taken before any other: a second one under the same name would
be picked up by whatever loads NCCL later, and the ids of one version may hang the ranks of another.
"""

import ctypes
import glob
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rdzv_client.errors import MintFailed
from rdzv_proto import limits

NAMES = ("libnccl.so", "librccl.so")

VARIABLES = ("RDZV_NCCL_LIB", "VLLM_NCCL_SO_PATH")
"""Paths of a library that somebody chose for this process."""

COMM_ID = "NCCL_COMM_ID"

LOADER_NAMES = ("libnccl.so.2", "libnccl.so", "librccl.so.1")

PREFIXES = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * limits.NCCL_ID_BYTES)]  # type: ignore[mutable-override]


@dataclass(frozen=True)
class Source:
    """Something that mints."""

    mint: Callable[[], bytes]
    version: int
    """As `ncclGetVersion` numbers it; 0: not known."""
    where: str


def to_raw(minted: object) -> bytes:
    """What a `mint=` function returned, as 128 bytes.

    Args:
        minted: bytes, a list or tuple of (signed) numbers, or an object with `as_bytes` or `bytes()`.

    Raises:
        ValueError: it is none of these, has another size, or is all zero. The text holds no byte of it.
    """
    as_bytes = getattr(minted, "as_bytes", None)
    if as_bytes is not None:
        minted = as_bytes() if callable(as_bytes) else as_bytes
    if isinstance(minted, list | tuple):
        raw = bytes(int(number) & 0xFF for number in minted)
    elif isinstance(minted, int | str) or minted is None:
        raise ValueError(f"mint returned {type(minted).__name__}, which is no unique id")
    else:
        raw = bytes(minted)  # type: ignore[call-overload]
    if len(raw) != limits.NCCL_ID_BYTES:
        raise ValueError(f"mint returned {len(raw)} bytes; a unique id has {limits.NCCL_ID_BYTES}")
    if not any(raw):
        raise ValueError("mint returned zeros only; look at the return code of ncclGetUniqueId")
    return raw


def comm_id_set(environ: Mapping[str, str] | None = None) -> bool:
    """NCCL would not mint but return the address that the variable names."""
    return bool((os.environ if environ is None else environ).get(COMM_ID))


def find(path: str | None = None) -> Source:
    """The library that this process uses or would use.

    Args:
        path: of a library, if the caller chose one; no other is tried then.

    Raises:
        MintFailed: there is none; everything that was tried is named.
    """
    tried: list[str] = []
    for how, candidate in [("nccl_library", path)] if path is not None else candidates():
        if isinstance(candidate, Source):
            return candidate
        try:
            return load(candidate)
        except (OSError, AttributeError) as error:
            tried.append(f"{how}: {candidate} ({_short(error)})")
    raise MintFailed(
        "no NCCL library can be loaded to mint a unique id; tried "
        + ("; ".join(tried) or "nothing"),
        "Install NCCL (for example the wheel nvidia-nccl-cu12), set RDZV_NCCL_LIB, or pass mint=.",
    )


def version_here() -> int:
    """NCCL's version, if a library is mapped in this process; nothing is loaded."""
    for path in mapped():
        try:
            return load(path, os.RTLD_NOLOAD).version
        except (OSError, AttributeError):
            continue
    return 0


def load(path: str, more_flags: int = 0) -> Source:
    """One library.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it is not NCCL.
    """
    library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | more_flags)
    get_id, get_version = library.ncclGetUniqueId, library.ncclGetVersion
    number = ctypes.c_int()
    get_version(ctypes.byref(number))

    def mint() -> bytes:
        out = _UniqueId()
        code = get_id(ctypes.byref(out))
        if code != 0:
            raise MintFailed(f"ncclGetUniqueId of {path} failed: {_reason(library, code)}")
        return bytes(out)

    return Source(mint, number.value, path)


def candidates(
    environ: Mapping[str, str] | None = None, modules: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, Any]]:
    """Where a library may be, best first: (how it was found, path or `Source`)."""
    environ = os.environ if environ is None else environ
    modules = sys.modules if modules is None else modules
    for variable in VARIABLES:
        if environ.get(variable):
            yield variable, environ[variable]
    for path in mapped():
        yield "mapped in this process", path
    static = _of_torch(modules)
    if static is not None:
        yield "torch", static
    for folder in _package_folders("nvidia.nccl"):
        yield from _in_folder("wheel", os.path.join(folder, "lib"))
    for folder in _package_folders("torch"):
        yield from _in_folder("torch", os.path.join(folder, "lib"))
        yield from _in_folder("beside torch", os.path.join(folder, "..", "nvidia", "nccl", "lib"))
    for entry in sys.path:
        yield from _in_folder("sys.path", os.path.join(entry, "nvidia", "nccl", "lib"))
    for name in LOADER_NAMES:
        yield "loader", name
    for variable in PREFIXES:
        for folder in ("lib64", "lib"):
            if environ.get(variable):
                yield from _in_folder(variable, os.path.join(environ[variable], folder))


def mapped(maps: str = "/proc/self/maps") -> list[str]:
    """NCCL libraries that this process has loaded already."""
    try:
        with open(maps) as file:
            paths = [line.split(maxsplit=5)[5].strip() for line in file if line.count("/")]
    except OSError:
        return []
    return list(dict.fromkeys(p for p in paths if os.path.basename(p).startswith(NAMES)))


def _of_torch(modules: Mapping[str, Any]) -> Source | None:
    """A torch with NCCL linked into it."""
    torch = modules.get("torch")
    if not hasattr(getattr(torch, "_C", None), "_nccl_unique_id"):
        return None
    assert torch is not None, "a missing module has no attribute"
    nccl = torch.cuda.nccl
    major, minor, patch = (*nccl.version(), 0, 0)[:3]
    number = major * 10_000 + minor * 100 + patch
    return Source(lambda: bytes(nccl.unique_id()), number, "torch.cuda.nccl")


def _package_folders(name: str) -> list[str]:
    """Where a package is, without importing it (its parents are, when it has any)."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return []
    return [] if spec is None else list(spec.submodule_search_locations or [])


def _in_folder(how: str, folder: str) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), name + "*"))):
            yield how, path


def _reason(library: ctypes.CDLL, code: int) -> str:
    text = f"code {code}"
    for name, arguments in (("ncclGetErrorString", (code,)), ("ncclGetLastError", (None,))):
        function = getattr(library, name, None)  # the second came with 2.13
        if function is not None:
            function.restype = ctypes.c_char_p
            said = function(*arguments)
            text += f", {said.decode(errors='replace').strip()}" if said else ""
    return text


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
