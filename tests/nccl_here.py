"""The NCCL library that tests mint with: the wheel that the Makefile puts into a folder of its own, so that
it never meets the copy that torch brings."""

import functools
import os
import sys
from pathlib import Path

from rdzv_client import nccl_library
from rdzv_client.errors import MintFailed

FOLDER = Path(sys.prefix) / "nccl" / "nvidia" / "nccl" / "lib"


@functools.cache
def path() -> str:
    """Its path; empty if there is none. RDZV_NCCL_LIB chooses another."""
    chosen = os.environ.get("RDZV_NCCL_LIB")
    if chosen:
        return chosen
    for found in sorted(FOLDER.glob("libnccl.so*")):
        return str(found)
    try:
        return nccl_library.find().where
    except MintFailed:
        return ""


MISSING = "no NCCL library here (the Makefile installs a wheel where there is one for the platform)"
