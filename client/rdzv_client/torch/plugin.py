"""Entry point `rdzv` in the group `torchrun.handlers`.

torch loads every entry point of the group in every torchrun, whatever the backend, and takes an
exception for a warning. So nothing is imported here that could fail or cost time; that happens when
a job really asks for the backend.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def get_handler_factory() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What torch calls without arguments; returns the creator it registers."""
    return create_handler


def create_handler(params: "RendezvousParameters") -> "RendezvousHandler":
    """Make the rendezvous handler of one agent.

    Args:
        params: what torchrun was told.

    Raises:
        ValueError: an endpoint or a --rdzv-conf key is wrong; it is named, with the nearest known.
        RuntimeError: a package that rdzv needs is missing or broken.
    """
    try:
        from rdzv_client.torch.handler import RdzvHandler
    except ImportError as error:
        from rdzv_proto import __version__

        what = f"module {error.name!r}" if error.name else "a module"
        raise RuntimeError(
            f"the torchrun backend 'rdzv' (package rdzv {__version__}) cannot be loaded: {what} "
            f"is missing or broken ({error}); reinstall it: pip install --force-reinstall rdzv"
        ) from None
    return RdzvHandler.create(params)
