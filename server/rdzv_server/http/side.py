"""Starts and stops the HTTP side on the server's own loop: if it answers, the loop runs.

It speaks plain HTTP, with TLS and tokens at the main port too, and takes no credential: what it shows is
fit for everybody who can reach it. Probes and scrapers cannot make our proof, and a bearer token that
crosses the wire as it is would be weaker than what it stands for (SEMANTICS T18).
"""

import asyncio
import socket
from collections.abc import Sequence

from aiohttp import web

from rdzv_server.http.door import CONNECTIONS_MAX, Door, Gone, Report
from rdzv_server.http.lag import Lag
from rdzv_server.http.metrics import Renderer
from rdzv_server.http.numbers import Sources
from rdzv_server.http.pages import Conversation, Pages

CLOSE_S = 0.5
"""Answers under way get this long at the end; the main port is closed by then."""


class Side:
    """The HTTP side of one server.

    Args:
        sockets: where it listens (`ports.open_sockets`); owned from now on.
        sources: of health and numbers.
        report: writes to the log.
        most: connections at a time (`door.connections_max`).
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        sources: Sources,
        report: Report,
        *,
        most: int = CONNECTIONS_MAX,
    ) -> None:
        self._renderer = Renderer(sources.take)
        self._lag = Lag(sources.lag)
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._server = web.Server(Pages(sources.health, self._renderer).handle)
        self._door = Door(sockets, self._protocol, report, most=most)

    def start(self) -> None:
        """Answer from now on.

        Raises:
            OSError: the loop cannot watch the sockets.
        """
        self._lag.start()
        self._door.start()

    async def close(self) -> None:
        """Answer no more."""
        self._lag.stop()
        await self._door.close(CLOSE_S)
        self._renderer.close()

    def _protocol(self, gone: Gone) -> Conversation:
        return Conversation(self._server, self._loop, self._report, gone)
