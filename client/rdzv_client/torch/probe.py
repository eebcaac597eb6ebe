"""Whether MASTER_ADDR:MASTER_PORT can be reached, found out by each agent beside its work.

Workers behind a firewall hang in `init_process_group` for minutes and then name no cause. So each
agent tries to connect, on a thread of its own, once a generation has formed, and tells its log and
the server. It connects and closes; a TCPStore takes that for a client that went away.

That nobody listens at first is normal: worker 0 imports torch, loads data, and then opens its store.
Other failures are told after two attempts in a row. The thread ends with the generation, with
success, or after `PROBE_S`; nothing here ever raises into the agent. The same thread looks for the
agent's workers and tells the server their process ids.
"""

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdzv_client import dial
from rdzv_client.blocking import Generation
from rdzv_client.endpoint import Endpoint
from rdzv_client.engine import Engine
from rdzv_client.torch import workers
from rdzv_proto import limits
from rdzv_proto.messages import Address, AnyReply, AnyRequest, Error, MasterProbe, WorkersStarted

log = logging.getLogger("rdzv")

PROBE_S = 300.0
"""As long as torch's own workers try to connect (default timeout of their store)."""

REFUSED_S = 60.0
"""From here on people want to be told that nobody listens: importing torch and a model takes less."""

WORKERS_S = 60.0
"""How long the workers are looked for; torch starts them right after the rank exchange."""

ATTEMPT_S = 3.0
"""For one attempt; a first lost SYN is repeated by the kernel after 1 s."""

PAUSE_MIN_S, PAUSE_MAX_S, PAUSE_GROWTH = 0.25, 10.0, 1.5
"""Between attempts: quick while a job starts, hardly noticeable later."""

REPEATED = 2
"""Failures in a row that are told: one may be a route that is just coming up."""


@dataclass(frozen=True)
class Outcome:
    """How one attempt went: reached (no error), refused, or another error."""

    error: str = ""
    refused: bool = False


class Judge:
    """Decides which outcomes are worth telling, and which only repeat what was told."""

    def __init__(self) -> None:
        self._failures = 0
        self._told: Outcome | None = None

    @property
    def told(self) -> bool:
        """Something was told before."""
        return self._told is not None

    def take(self, after_s: float, outcome: Outcome) -> Outcome | None:
        """What to tell about an attempt that ended `after_s` after the generation had formed."""
        failed = bool(outcome.error) and not outcome.refused
        self._failures = self._failures + 1 if failed else 0
        if failed and self._failures < REPEATED:
            return None
        if outcome.refused:
            if after_s < REFUSED_S:
                return None
            outcome = Outcome(f"nobody listens there yet ({after_s:.0f} s)", refused=True)
        if self._told is not None and (
            (self._told.refused, bool(self._told.error)) == (outcome.refused, bool(outcome.error))
        ):
            return None
        self._told = outcome
        return outcome


class Probe:
    """The thread of one generation.

    Args:
        generation: just formed.
        master: MASTER_ADDR and MASTER_PORT.
        engine: tells the server.
        name: of this node, for its log.
        find: finds this node's workers; by default among the children of this process.
    """

    def __init__(
        self,
        generation: Generation,
        master: Endpoint,
        engine: Engine,
        name: str,
        find: Callable[[], workers.Workers] | None = None,
    ) -> None:
        self._generation, self._master = generation, master
        self._engine, self._name = engine, name
        self._find = find or (lambda: workers.find(str(generation.fence)))
        self._began = time.monotonic()
        self._judge = Judge()
        self._over = False
        self._wake_out, self._wake_in = socket.socketpair()
        self._thread = threading.Thread(target=self._main, name="rdzv-probe", daemon=True)
        self._thread.start()
        generation.ended.when_set(self.cancel)

    def cancel(self) -> None:
        """Let the thread end soon. Never blocks; safe to call twice and from any thread."""
        self._over = True
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end after `cancel`; it may sit in a name lookup."""
        self._thread.join(timeout_s)

    # --- the thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with self._wake_in, self._wake_out:
                self._run()
        except Exception:
            log.exception("rdzv[%s] internal error of the probe", self._generation.run)

    def _run(self) -> None:
        reached = known = False
        pause_s = PAUSE_MIN_S
        while not (self._over or (reached and known)) and self._after_s() < PROBE_S:
            known = known or self._found_workers()
            reached = reached or self._probed()
            self._sleep(pause_s)
            pause_s = min(pause_s * PAUSE_GROWTH, PAUSE_MAX_S)

    def _after_s(self) -> float:
        return time.monotonic() - self._began

    def _sleep(self, pause_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ)
            selector.select(pause_s)

    def _found_workers(self) -> bool:
        """Look for the workers; True once there is nothing more to look for."""
        found = self._find()
        if not found.complete and self._after_s() < WORKERS_S:
            return False
        if found.ranks:
            self._submit(
                WorkersStarted(
                    fence=self._generation.fence,
                    ranks=list(found.ranks.values()),
                    pids=list(found.ranks),
                    world_size=found.world_size,
                )
            )
        return True

    def _probed(self) -> bool:
        """One attempt, told if it is worth it; True once it was reached."""
        outcome = attempt(self._master, self._wake_out)
        if outcome is None:
            return False
        told_before = self._judge.told
        told = self._judge.take(self._after_s(), outcome)
        if told is not None:
            self._tell(told, told_before)
        return not outcome.error

    # --- telling ------------------------------------------------------------------------------

    def _tell(self, outcome: Outcome, told_before: bool) -> None:
        generation, after_s = self._generation, self._after_s()
        where = f"MASTER_ADDR:MASTER_PORT {self._master} of generation {generation.number}"
        if not outcome.error:
            level = logging.INFO if told_before else logging.DEBUG
            text = f"{self._name} reached {where} after {after_s:.0f} s"
        elif outcome.refused:
            level = logging.INFO
            text = (
                f"nobody listens on {where} after {after_s:.0f} s: worker 0 has not called "
                "init_process_group (nothing is wrong if your script never does)"
            )
        else:
            level = logging.WARNING
            text = (
                f"{self._name} cannot reach {where} ({outcome.error}; {after_s:.0f} s after it "
                "formed): its workers will hang in init_process_group. Look for a firewall or a "
                "missing route between this node and that address; torchrun --local-addr on the "
                "rank 0 node chooses another one"
            )
        log.log(level, "rdzv[%s] %s", generation.run, text)
        self._submit(
            MasterProbe(
                fence=generation.fence,
                master=Address(host=self._master.host, port=self._master.port),
                error=outcome.error[: limits.TEXT_CHARS_MAX],
                refused=outcome.refused,
                after_ms=round(after_s * 1000),
            )
        )

    def _submit(self, report: AnyRequest) -> None:
        """Sent now or with the next connection; nobody waits for the answer."""
        self._engine.submit(report, lambda reply: self._answered(report, reply))

    def _answered(self, report: AnyRequest, reply: AnyReply) -> None:
        if isinstance(reply, Error):  # the generation has ended, or the server is older
            log.debug("rdzv[%s] %s: %s", self._generation.run, report.op, reply.message)


def attempt(master: Endpoint, wake: socket.socket) -> Outcome | None:
    """Try each address of a host once.

    Args:
        master: host and port.
        wake: becomes readable when the attempt shall end at once.

    Returns:
        How it went; None if it was woken.
    """
    try:
        found = socket.getaddrinfo(master.host, master.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Outcome(dial.reason(error))
    outcome = Outcome("the name has no address")
    for family, kind, proto, _, address in found:
        try:
            with socket.socket(family, kind, proto) as sock:
                tried = _connected(sock, address, ATTEMPT_S / len(found), wake)
        except OSError as error:
            tried = Outcome(dial.reason(error))
        if tried is None or not tried.error:
            return tried
        if not outcome.refused:  # a host that answers tells more than an address without a route
            outcome = tried
    return outcome


def _connected(
    sock: socket.socket, address: Any, patience_s: float, wake: socket.socket
) -> Outcome | None:
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code == errno.EINPROGRESS:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            selector.register(wake, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(patience_s)]
        if wake in ready:
            return None
        if not ready:
            return Outcome("timed out")
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code == errno.ECONNREFUSED or (not code and sock.getsockname() == sock.getpeername()):
        return Outcome("connection refused", refused=True)  # or it has met itself
    if code:
        return Outcome("timed out" if code == errno.ETIMEDOUT else os.strerror(code))
    return Outcome()
