"""The package itself: what it offers, and that importing it is cheap."""

import subprocess
import sys

import pytest

import rdzv_client
from rdzv_proto import __version__


@pytest.mark.parametrize("name", rdzv_client.__all__)
def test_everything_it_offers_can_be_had(name: str) -> None:
    assert getattr(rdzv_client, name) is not None


def test_what_is_had_lazily_is_the_same_as_from_its_module() -> None:
    from rdzv_client.aio import AsyncClient
    from rdzv_client.blocking import Client
    from rdzv_client.errors import RdzvError

    assert rdzv_client.Client is Client
    assert rdzv_client.AsyncClient is AsyncClient
    assert rdzv_client.RdzvError is rdzv_client.errors.RdzvError is RdzvError
    assert rdzv_client.__version__ == __version__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'rdzv_client' has no attribute 'Clinet'"):
        _ = rdzv_client.Clinet


def test_importing_it_loads_nothing_but_itself() -> None:
    code = (
        "import sys, rdzv_client; "
        "heavy = {'msgspec', 'msgpack', 'click', 'torch', 'asyncio', 'socket', 'selectors'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
