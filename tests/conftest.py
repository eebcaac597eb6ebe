"""Options and fixtures of all tests."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable

import pytest
import uvloop


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="play every scenario in its full length (make e2e)"
    )


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and processes inherit that: Ctrl-C has to
    mean the same in every test, however the tests were started."""
    # Servers of tests keep nothing of their own accord, and have no second port unless it is what is tested.
    os.environ.setdefault("RDZV_HTTP_PORT", "off")
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="rdzv-state-")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """What servers left there goes with the tests."""
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="full length only: make e2e"))


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs on both loops that the server can run on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
