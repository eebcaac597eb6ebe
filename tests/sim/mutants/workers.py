"""Mutants of training processes that have sessions of their own."""

from typing import Any

from rdzv_client.session import Session
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import Ended, Error, HelloWorker
from rdzv_server.core import generations, rights, sessions
from rdzv_server.core.model import Role, Run
from rdzv_server.core.model import Session as Held
from rdzv_server.core.refusal import Refused
from rdzv_server.core.tables import Tables
from tests.sim.mutants.mutant import Collection, Patch
from tests.sim.world import Mode

MUTANTS = Collection()
mutant = MUTANTS.mutant


@mutant("S9")
def session_ends_generation(patch: Patch) -> None:
    """a worker whose session was lost takes its generation for dead"""
    gone = Session._session_gone

    def ended(session: Session, why: Error) -> None:
        gone(session, why)
        session._note(session.watch.end("session_lost", why.message))

    patch(Session, "_session_gone", ended)


@mutant("S9")
def worker_is_a_member(patch: Patch) -> None:
    """a generation ends when a worker's session is lost"""
    end_waits = generations.end_waits

    def ended(tables: Tables, run: Run | None, session: Held, why: str) -> None:
        end_waits(tables, run, session, why)
        if run is not None and session.role is Role.WORKER and session.fence == run.fence:
            generations.end(tables, run, Ended(kind="lost", reason=why, node_id=session.node_id))

    patch(generations, "end_waits", ended)


@mutant("S10", Mode.DURABLE)
def token_before_generation(patch: Patch) -> None:
    """a worker that outlived its node is called an impostor after a restart"""
    hello = sessions.hello_worker

    def checked(tables: Tables, connection: Any, ask: HelloWorker) -> Any:
        if ask.fence.epoch == tables.identity.epoch:
            try:
                rights.check_worker_token(tables, ask)
            except Refused as refused:
                raise Refused(ErrorCode.UNAUTHENTICATED, str(refused)) from None
        return hello(tables, connection, ask)

    patch(sessions, "hello_worker", checked)


@mutant("S31", Mode.DURABLE)
def only_new_worker_tokens(patch: Patch) -> None:
    """after a restart workers of before are impostors"""
    check = rights.check_worker_token

    def checked(tables: Tables, hello: HelloWorker) -> None:
        agent = tables.nodes.get((hello.run, hello.node_id))
        kept = () if agent is None else agent.worker_hashes
        if agent is not None:
            agent.worker_hashes = ()
        try:
            check(tables, hello)
        finally:
            if agent is not None:
                agent.worker_hashes = kept

    patch(rights, "check_worker_token", checked)
