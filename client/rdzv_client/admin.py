"""Looking at a server: the connection behind `rdzv status` and `rdzv close`."""

import time
from typing import Any

from rdzv_client import endpoint, names, operations
from rdzv_client.access import Access
from rdzv_client.calls import Calls
from rdzv_client.credentials import Credentials
from rdzv_client.engine import Engine
from rdzv_client.errors import Unsupported, from_reply
from rdzv_proto.auth import Grant, Scope
from rdzv_proto.messages import (
    Done,
    GenerationStatus,
    HelloAdmin,
    ListRuns,
    MemberPage,
    Members,
    MemberStatus,
    Runs,
    RunStatus,
    ServerStatus,
    ShowGeneration,
    Status,
    Welcome,
)


class Admin:
    """An admin connection.

    Args:
        server: as in `Client`.
        timeout_s: patience for the connection and for each answer.
        scope: what it is for: looking, or acting on runs.
        run: the only one that it is about; empty: all that the token is good for.
        files: `token_file`, `tls_ca`, …, as in `Client`.

    Raises:
        ValueError: the endpoint is wrong, or a file that is named.
        RdzvError: the server cannot be reached, is none, or refuses.
    """

    def __init__(
        self,
        server: str | None = None,
        timeout_s: float = 3.0,
        *,
        scope: Scope = Scope.READ,
        run: str = "",
        **files: Any,
    ) -> None:
        credentials = Credentials.take(files)
        if files:
            raise TypeError(f"Admin takes no {', '.join(files)}")
        self.timeout_s = timeout_s
        self.endpoints = endpoint.find(server)
        self._engine = Engine(
            HelloAdmin(client=names.CLIENT),
            self.endpoints,
            Access(credentials, Grant(scope, run)),
            connect_timeout_s=timeout_s,
            reconnect_timeout_s=timeout_s,
        )
        self._calls = Calls(self._engine)
        self._engine.wait_connected(None)
        failure = self._engine.session.failure
        if failure is not None:
            self.close()
            raise from_reply(failure)

    @property
    def welcome(self) -> Welcome:
        """What the server said of itself."""
        welcome = self._engine.session.welcome
        assert welcome is not None, "connected without a welcome"
        return welcome

    @property
    def protocol(self) -> int:
        """The version of the protocol that is spoken with the server."""
        return self._engine.session.wire.version

    def status(self) -> tuple[ServerStatus, float]:
        """How the server is, and the round trip time in seconds."""
        began = time.perf_counter()
        status = self._calls.ask(Status(), ServerStatus, self.timeout_s)
        return status, time.perf_counter() - began

    def runs(self, only: str = "") -> list[RunStatus]:
        """All runs, or one.

        Raises:
            UnknownRun: the one is not there.
        """
        rows: list[RunStatus] = []
        more = True
        while more:
            ask = ListRuns(after=rows[-1].run if rows else "", only=only)
            page = self._calls.ask(ask, Runs, self.timeout_s)
            rows += page.runs
            more = page.more
        return rows

    def members(self, run: str) -> list[MemberStatus]:
        """The members of a run: participants by rank, then the others."""
        rows: list[MemberStatus] = []
        total = 1
        while len(rows) < total:
            ask = Members(run=run, offset=len(rows))
            page = self._calls.ask(ask, MemberPage, self.timeout_s)
            if not page.members:
                break
            rows += page.members
            total = page.total
        return rows

    def generation(self, run: str) -> GenerationStatus | None:
        """What goes on inside a run's generation; None if the server is too old to say.

        Raises:
            UnknownRun: it is not there.
        """
        try:
            return self._calls.ask(ShowGeneration(run=run), GenerationStatus, self.timeout_s)
        except Unsupported:
            return None

    def close_run(self, run: str, detail: str) -> None:
        """End a run for everybody.

        Raises:
            UnknownRun.
        """
        self._calls.ask(operations.close_run(run, detail), Done, self.timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._engine.stop()
