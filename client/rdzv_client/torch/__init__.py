"""What rdzv gives to torch: the torchrun plug-in, `init_method="rdzv://…"`, and a `Store`.

    from rdzv_client.torch import RdzvStore, current_generation
    import rdzv_client.torch.init_method  # makes rdzv:// known to init_process_group

Nothing is imported until it is asked for: torch loads this package in every torchrun, whatever the
backend, for the plug-in's entry point.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdzv_client.torch.dist_store import RdzvStore
    from rdzv_client.torch.init_method import current_generation

__all__ = ["RdzvStore", "current_generation"]


def __getattr__(name: str) -> Any:
    if name == "current_generation":
        from rdzv_client.torch import init_method

        return init_method.current_generation
    if name == "RdzvStore":
        from rdzv_client.torch import dist_store

        return dist_store.RdzvStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
