"""The rendezvous handler that torchrun's agent drives (TORCH.md 3).

All calls come from the agent's main thread. `num_nodes_waiting()` reads a value that pushes keep
current; it never blocks and never raises, for whatever it raises kills healthy workers. `shutdown()`
is a leave, never a close of the run, and never raises either.
"""

import atexit
import logging
import os
import sys
from datetime import timedelta
from typing import Any

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    api,
)

from rdzv_client import endpoint
from rdzv_client.blocking import Client, Generation
from rdzv_client.errors import RdzvError, RunFinished
from rdzv_client.operations import LeaveKind
from rdzv_client.torch import conf, logs
from rdzv_client.torch.export import WorkerExport
from rdzv_client.torch.owner import owner_of_run
from rdzv_client.torch.port import ReservedPort
from rdzv_client.torch.probe import Probe
from rdzv_client.torch.signals import Terminated, termination_raises
from rdzv_client.torch.store import AgentStore
from rdzv_proto.messages import Address

log = logging.getLogger("rdzv")

LAST_WORDS_S = 2.0
"""What a node that is ending may spend on saying so: schedulers kill what does not end."""

PROBE_END_S = 0.5
"""Its thread ends at once, unless it sits in a name lookup; it is a daemon then."""

DRAINED = (api.RendezvousError, SignalException, SystemExit, KeyboardInterrupt)
"""In flight while torch shuts down: this node ends, and its workers did not fail."""

AGENT_SHUTS_DOWN_FIRST = "_rdzv_handler" in LocalElasticAgent._shutdown.__code__.co_names
"""Up to torch 2.7 the agent calls `shutdown()` itself, once or twice, before the launcher knows how
it went and calls it again."""


class RdzvHandler(RendezvousHandler):
    """One agent's handler.

    Args:
        backend: the name under which it was asked for.
        client: the node.
        settings: from --rdzv-conf.
        local_addr: from --local-addr.
    """

    def __init__(
        self, backend: str, client: Client, settings: conf.Conf, local_addr: str | None
    ) -> None:
        self._backend = backend
        self._client = client
        self._settings = settings
        self._local_addr = local_addr
        self._server_store = settings.options["worker_store"] == "server"
        self._port: ReservedPort | None = None
        self._next_port: ReservedPort | None = None
        self._reserve_port()  # not while others wait for this node
        self._was_in_world = False
        self._export = WorkerExport(client)
        self._probe: Probe | None = None
        self._finished = False
        self._over = False
        self._reason_follows = False
        self._pid = os.getpid()
        self._nat_warned = False
        atexit.register(self._at_exit)

    @classmethod
    def create(cls, params: RendezvousParameters) -> "RdzvHandler":
        """Make a handler from what torchrun was told.

        Raises:
            ValueError: a setting is wrong, or a file that it names.
        """
        logs.set_up()
        settings = conf.read(params.config, os.environ)
        for warning in settings.warnings:
            log.warning("rdzv[%s] %s", params.run_id, warning)
        given = params.endpoint or os.environ.get(endpoint.VARIABLE, "")
        if not given:
            raise ValueError(
                "--rdzv-endpoint is missing: it must name the machine where rdzv-server runs, as in "
                f"--rdzv-endpoint=HOST:29500 (or set {endpoint.VARIABLE})"
            )
        for one in endpoint.parse(given):
            default = "" if one.port_given else " (no port given: the default is used)"
            log.info("rdzv[%s] rendezvous at %s%s", params.run_id, one, default)
        client = Client(
            given,
            run=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            owner=owner_of_run(params.run_id),
            credentials=settings.credentials,
            **settings.options,
        )
        return cls(params.backend, client, settings, params.local_addr)

    # --- what the agent calls -----------------------------------------------------------------

    def get_backend(self) -> str:
        """The name torch knows this handler by."""
        return self._backend

    def get_run_id(self) -> str:
        """--rdzv-id."""
        return self._client.options.run

    @property
    def use_agent_store(self) -> bool:
        """Whether the server serves the workers' store. If not, worker 0 hosts it, on a fresh port
        for each generation."""
        return self._server_store

    def is_closed(self) -> bool:
        """True once the run was closed on purpose."""
        ended = self._client.engine.view.ended
        return ended is not None and ended.kind == "closed"

    def set_closed(self) -> None:
        """Close the run for everybody. torch's agent never calls this."""
        self._client.close_run("closed by a rendezvous handler")

    def num_nodes_waiting(self) -> int:
        """Above 0: stop the workers and rendezvous again. Kept current by pushes."""
        return self._client.engine.view.waiting

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until this node is in a formed generation.

        Raises:
            RendezvousTimeoutError, RendezvousClosedError, RendezvousConnectionError,
            RendezvousStateError: the text says what, who, where, since when, and what to do.
            SystemExit: 0 when the run finished while this node was a standby.
        """
        self._finished = False
        try:
            with termination_raises():
                generation = self._join()
        except RunFinished as done:
            log.info("rdzv[%s] %s; this standby ends with it", self.get_run_id(), done.message)
            raise SystemExit(0) from None
        except RdzvError as error:
            raise _torch_error(error) from None
        except Terminated as terminated:
            self._leave("drained", "SIGTERM while waiting for the rendezvous", LAST_WORDS_S)
            terminated.die()
            raise
        except BaseException as error:  # a signal that torch turned into an exception
            self._leave("drained", f"{type(error).__name__}: {error}", LAST_WORDS_S)
            raise
        self._take_port()
        return self._info(generation)

    def shutdown(self) -> bool:
        """Leave the run, saying why as far as that can be known. Never raises."""
        if self._over:
            return True
        if AGENT_SHUTS_DOWN_FIRST and self._workers_failed():
            self._reason_follows = True
            return True
        kind, detail, exit_code = self._why()
        self._end(kind, detail, exit_code, self._settings.close_timeout_s)
        return True

    # --- inside -------------------------------------------------------------------------------

    def _join(self) -> Generation:
        self._client.connect()
        host = self._local_addr or self._client.engine.local_host
        self._reserve_port()
        port = 0 if self._next_port is None else self._next_port.port
        address = Address(host=host, port=port, explicit=bool(self._local_addr))
        return self._client.join(address=address)

    def _reserve_port(self) -> None:
        if self._next_port is None and not self._server_store:
            self._next_port = ReservedPort()

    def _take_port(self) -> None:
        """The new generation has its own port; the last one's is free again."""
        self._was_in_world = True
        old, self._port, self._next_port = self._port, self._next_port, None
        if old is not None:
            old.release()

    def _info(self, generation: Generation) -> RendezvousInfo:
        log.info(
            "rdzv[%s] generation %d: group rank %d of %d (%s)",
            generation.run, generation.number, generation.rank, generation.world_size,
            generation.reason,
        )  # fmt: skip
        host, port = self._store_address(generation)
        generation.ended.when_set(lambda: self._note_end(generation))
        self._export.publish(generation)
        self._probe_master(generation, host, port)
        return RendezvousInfo(
            store=AgentStore(
                generation,
                timedelta(seconds=self._settings.read_timeout_s),
                lambda: self._note_finished(generation),
            ),
            rank=generation.rank,
            world_size=generation.world_size,
            bootstrap_store_info=RendezvousStoreInfo(host, port),
        )

    def _store_address(self, generation: Generation) -> tuple[str, int]:
        """MASTER_ADDR and MASTER_PORT: where the workers find their store."""
        if self._server_store:
            return self._server_address(generation)
        master = generation.master
        if generation.rank == 0:
            log.info(
                "rdzv[%s] workers' store: worker 0. MASTER_ADDR=%s MASTER_PORT=%d chosen because: %s",
                generation.run, master.host, master.port, generation.master_reason,
            )  # fmt: skip
            self._warn_of_nat()
        return master.host, master.port

    def _server_address(self, generation: Generation) -> tuple[str, int]:
        """The address at which this very node reaches the server: nodes may have different ones."""
        host, port = self._client.engine.remote_host, generation.store_port
        if not port:
            raise api.RendezvousStateError(
                f"rdzv[{generation.run}] worker_store=server: the server at "
                f"{self._client.engine.session.where} serves no workers' stores; update it, or use "
                "worker_store=rank0"
            )
        log.info(
            "rdzv[%s] workers' store: the server. MASTER_ADDR=%s MASTER_PORT=%d, for this generation "
            "only",
            generation.run, host, port,
        )  # fmt: skip
        return host, port

    def _probe_master(self, generation: Generation, host: str, port: int) -> None:
        if self._probe is not None:
            self._probe.cancel()
        where = endpoint.Endpoint(host, port)
        self._probe = Probe(generation, where, self._client.engine, self._client.options.name)

    def _note_end(self, generation: Generation) -> None:
        if self._over:  # this node is leaving, and has said why
            return
        log.log(
            logging.INFO if generation.ended.kind == "finished" else logging.WARNING,
            "rdzv[%s] generation %d ended: %s",
            generation.run, generation.number, generation.ended.reason,
        )  # fmt: skip

    def _note_finished(self, generation: Generation) -> None:
        """The agent's workers succeeded; it is about to enter the exit barrier."""
        self._finished = True
        try:
            self._client.finished()
        except RdzvError as error:
            log.info("rdzv[%s] %s", generation.run, error.message)

    def _warn_of_nat(self) -> None:
        """The server sees another address than this node has: others may not reach this one."""
        engine = self._client.engine
        welcome = engine.session.welcome
        if self._local_addr or self._nat_warned or welcome is None:
            return
        if welcome.observed_host and welcome.observed_host != engine.local_host:
            self._nat_warned = True
            log.warning(
                "rdzv[%s] this node's address towards the server is %s, but the server sees it as "
                "%s: there is a proxy or NAT between them. If other nodes cannot reach %s, give "
                "this node's address with --local-addr",
                self.get_run_id(), engine.local_host, welcome.observed_host, engine.local_host,
            )  # fmt: skip

    def _workers_failed(self) -> bool:
        """Nothing is in flight in the agent, and its workers did not succeed."""
        return sys.exc_info()[1] is None and not self._finished and self._was_in_world

    def _why(self) -> tuple[LeaveKind, str, int | None]:
        """torch does not tell why it shuts down: the exception in flight does (TORCH.md 3.6)."""
        error = sys.exc_info()[1]
        if self._finished or error is None:
            return "finished", "", None
        if isinstance(error, ChildFailedError):
            rank, failure = error.get_first_failure()
            return "failed", f"worker rank {rank}", failure.exitcode
        if isinstance(error, DRAINED):
            return "drained", type(error).__name__, None
        return "failed", f"{type(error).__name__}: {error}", None

    def _at_exit(self) -> None:
        """torch calls no `shutdown()` after a signal: the interpreter's end is the last chance."""
        if self._over or os.getpid() != self._pid:  # the node belongs to the process that made it
            return
        kind: LeaveKind = "finished" if self._finished else "drained"
        if self._reason_follows:
            kind = "failed"
        self._end(kind, "the agent ended", None, LAST_WORDS_S)

    def _end(self, kind: LeaveKind, detail: str, exit_code: int | None, limit_s: float) -> None:
        self._over = True
        if self._probe is not None:
            self._probe.cancel()
        self._leave(kind, detail, limit_s, exit_code)
        self._client.close()
        self._export.remove()
        if self._probe is not None:
            self._probe.join(PROBE_END_S)
        for port in (self._port, self._next_port):
            if port is not None:
                port.release()
        atexit.unregister(self._at_exit)

    def _leave(
        self, kind: LeaveKind, detail: str, limit_s: float, exit_code: int | None = None
    ) -> None:
        """Tell the server, within a limit; nothing to tell it if there never was a contact."""
        session = self._client.engine.session
        if session.welcome is None:
            return
        if not session.connected_now:
            limit_s = min(limit_s, LAST_WORDS_S)
        try:
            self._client.leave(kind, detail, exit_code=exit_code, timeout=limit_s)
        except RdzvError as error:
            log.warning(
                "rdzv[%s] left without telling the server: %s", self.get_run_id(), error.message
            )


def _torch_error(error: RdzvError) -> Exception:
    kind: Any = getattr(api, error.info.torch)
    exception: Exception = kind(str(error))
    return exception
