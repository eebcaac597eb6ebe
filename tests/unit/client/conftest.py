"""The server that most tests of the client talk to; a module that wants another one makes its own."""

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running
