"""This process as a node of a run: what stands behind `init_method="rdzv://…"`.

Without torchrun there is no agent; each process joins for itself and its rank is the node's rank. It
stays a member until it ends: heartbeats go on between two process groups, and a second
`init_process_group` is a rejoin that makes a new generation. Nothing restarts a process whose peer
was lost; `generation.ended` says so.
"""

import logging
import os
import sys
from datetime import timedelta

from torch.distributed import Store, TCPStore

from rdzv_client.blocking import Client, Generation
from rdzv_client.endpoint import Endpoint
from rdzv_client.errors import RdzvError
from rdzv_client.operations import LeaveKind
from rdzv_client.torch.owner import owner_of_run
from rdzv_client.torch.port import ReservedPort
from rdzv_client.torch.probe import Probe
from rdzv_client.torch.url import Target
from rdzv_client.torch.workers import Workers
from rdzv_proto.messages import Address

log = logging.getLogger("rdzv")

LAST_WORDS_S = 2.0
"""What a process that is ending may spend on saying so."""

LOOPBACK = "127.0.0.1"
"""Where rank 0 reaches its own store, whatever the others call this machine."""


STORE_SERVED = "rdzv/store_served"
"""Set by rank 0 in the generation's keys. A TCPStore client tries to connect until its timeout, deaf to
everything; a wait for this key ends with the generation, and says why."""


class ProcessNode:
    """A client with the newest generation of its run, and the store of that.

    Args:
        target: the run.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.generation: Generation | None = None
        self.store: Store | None = None
        self._client = Client(
            target.servers or None,
            run=target.run,
            owner=owner_of_run(target.run),
            credentials=target.credentials,
            **target.options,
        )
        self._port: ReservedPort | None = None
        self._probe: Probe | None = None
        self._over = False

    @property
    def goes_on(self) -> bool:
        """It has not left."""
        return not self._over

    def rendezvous(self, timeout: timedelta) -> Generation:
        """Join, again if need be, and open the store of the new generation.

        Args:
            timeout: of the process group: for joining (if shorter than `join_timeout`), and of the
                store.

        Raises:
            ValueError: the rank that was asked for is not the one this process got.
            RdzvError, RuntimeError: no generation, or no store; this node has left then.
        """
        self.store = None
        try:
            generation = self._join(timeout.total_seconds())
            self._check_rank(generation)
            self.store = self._open_store(generation, timeout)
        except (RdzvError, KeyboardInterrupt) as error:
            self.end("drained", f"{type(error).__name__} while it joined")
            raise
        except BaseException as error:  # it was in, so the others must know
            self.end("failed", f"{type(error).__name__} in init_process_group")
            raise
        self.generation = generation
        return generation

    def end(self, kind: LeaveKind, detail: str = "", exit_code: int | None = None) -> None:
        """Leave the run, within a limit. Never raises; safe to call twice."""
        if self._over:
            return
        self._over = True
        if self._probe is not None:
            self._probe.cancel()
        session = self._client.engine.session
        limit_s = self.target.close_timeout_s if session.connected_now else LAST_WORDS_S
        try:
            if session.welcome is not None:
                self._client.leave(kind, detail, exit_code=exit_code, timeout=limit_s)
        except RdzvError as error:
            log.warning("rdzv[%s] left without telling the server: %s", self.target.run, error)
        self._client.close()
        if self._port is not None:
            self._port.release()

    # --- inside -------------------------------------------------------------------------------

    def _join(self, patience_s: float) -> Generation:
        self._client.connect()
        port = ReservedPort()
        address = Address(
            host=self.target.local_addr or self._client.engine.local_host,
            port=port.port,
            explicit=bool(self.target.local_addr),
        )
        join_timeout_s = self._client.options.join_timeout_s
        try:
            generation = self._client.join(min(join_timeout_s, patience_s), address=address)
        except BaseException:
            port.release()
            raise
        if self._port is not None:
            self._port.release()
        self._port = port
        generation.ended.when_set(lambda: self._note_end(generation))
        log.info(
            "rdzv[%s] generation %d: rank %d of %d (%s)",
            generation.run, generation.number, generation.rank, generation.world_size,
            generation.reason,
        )  # fmt: skip
        return generation

    def _check_rank(self, generation: Generation) -> None:
        asked = self.target.rank
        if asked is not None and asked != generation.rank:
            raise ValueError(
                f"{self.target.url}: rank={asked} was asked for, but this process is rank "
                f"{generation.rank} of {generation.world_size} in generation {generation.number}. "
                "Give each process its rank, from 0 up without gaps, or give none of them one"
            )

    def _open_store(self, generation: Generation, timeout: timedelta) -> Store:
        """Rank 0 serves the store, or the server does; everybody else is its client."""
        engine = self._client.engine
        server_store = self._client.options.worker_store == "server"
        master = Endpoint(generation.master.host, generation.master.port)
        if server_store:
            master = Endpoint(engine.remote_host, generation.store_port)
            if not master.port:
                raise RuntimeError(
                    f"worker_store=server: the server at {engine.session.where} serves no workers' "
                    "stores; update it, or use worker_store=rank0"
                )
        here = Workers({os.getpid(): generation.rank}, 1, generation.world_size)
        self._probe = Probe(generation, master, engine, self._client.options.name, lambda: here)
        world = generation.world_size
        if generation.rank == 0 and not server_store:
            store = TCPStore(LOOPBACK, master.port, world, True, timeout, wait_for_workers=False)
            generation.kv.set(STORE_SERVED, b"")
            return store
        if not server_store:
            generation.kv.wait([STORE_SERVED], timeout.total_seconds())
        return TCPStore(master.host, master.port, world, False, timeout)

    def _note_end(self, generation: Generation) -> None:
        if not self._over:
            log.log(
                logging.INFO if generation.ended.kind == "finished" else logging.WARNING,
                "rdzv[%s] generation %d ended: %s",
                generation.run, generation.number, generation.ended.reason,
            )  # fmt: skip


def why_it_ends() -> tuple[LeaveKind, str, int | None]:
    """How this process comes to its end, as far as that can be known while it does.

    A process of `multiprocessing` is asked while its last exception is in flight; the main process
    only after it has printed one, and not at all after `sys.exit(1)`.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return "finished", "", None
        code = error.code if isinstance(error.code, int) else 1
        return "failed", f"exit code {code}", code
    if error is None:
        return "finished", "", None
    if isinstance(error, KeyboardInterrupt):
        return "drained", "KeyboardInterrupt", None
    return "failed", f"{type(error).__name__}: {error}", None
