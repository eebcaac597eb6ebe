"""Mutants of the client session."""

from typing import Any

from rdzv_client.inflight import InFlight
from rdzv_client.reconnect import Reconnect
from rdzv_client.session import Session
from rdzv_client.watch import Watch
from rdzv_client.wire import Wire
from rdzv_proto import codec
from rdzv_proto.messages import Error, View, Welcome
from tests.sim.mutants.mutant import Collection, Patch
from tests.sim.world import Mode

MUTANTS = Collection()
mutant = MUTANTS.mutant


@mutant("S23")
def retried_under_a_new_id(patch: Patch) -> None:
    """after a reconnect a request is sent as another one"""
    welcomed = Session._welcomed

    def welcome(session: Session, now: float, message: Welcome) -> None:
        for request_id, ask in session._in_flight:
            if ask.op in ("kv_append", "kv_add"):
                session._in_flight.take(request_id)
                session._out.append(codec.encode(request_id + 1_000_000, ask))
                session._in_flight.add(request_id, ask)
        welcomed(session, now, message)

    patch(Session, "_welcomed", welcome)


@mutant("S33")
def pause_after_an_unanswered_hello(patch: Patch) -> None:
    """after a hello that a server left unanswered a client makes a pause longer than that server's grace"""
    failed = Reconnect.failed
    patch(Reconnect, "failed", lambda plan, now, unanswered=False: failed(plan, now))


@mutant("S10")
def older_view_believed(patch: Patch) -> None:
    """the view of a welcome is believed, however old it is"""

    def take(watch: Watch, view: View) -> bool:
        changed, watch.view = view != watch.view, view
        return changed

    patch(Watch, "take", take)
    patch(Watch, "catch_up", take)


@mutant("S29", Mode.CRASHES)
def end_not_noticed(patch: Patch) -> None:
    """a client whose session is gone believes in its generation"""
    patch(Watch, "end", lambda watch, kind, reason: False)


@mutant("L4")
def join_given_up(patch: Patch) -> None:
    """a join ends with the session that it was made in"""
    gone = Session._session_gone

    def ended(session: Session, why: Error) -> None:
        for request_id, ask in session._in_flight:
            if ask.op == "join":
                session._settle(request_id, why)
        gone(session, why)

    patch(Session, "_session_gone", ended)


@mutant("S23")
def acknowledges_everything(patch: Patch) -> None:
    """a heartbeat acknowledges replies that have not come"""
    patch(InFlight, "acknowledge", lambda requests: requests._last)


@mutant("S23")
def the_end_is_an_answer(patch: Patch) -> None:
    """a session that is over for good says of what was under way that it certainly was not done"""
    patch(InFlight, "without_answer", lambda requests, request_id, why: why)


@mutant("L6")
def nothing_sent_again(patch: Patch) -> None:
    """requests of a connection that broke are not sent again"""
    welcomed = Session._welcomed

    def welcome(session: Session, now: float, message: Any) -> None:
        welcomed(session, now, message)
        session._out.clear()

    patch(Session, "_welcomed", welcome)


@mutant("S31", Mode.CRASHES)
def epochs_are_compared(patch: Patch) -> None:
    """a generation of a server whose clock is behind is taken for an old one"""
    patch(Watch, "_older", lambda watch, fence, mine: fence < mine)


@mutant("S31", Mode.CRASHES)
def new_epoch_only_when_refused(patch: Patch) -> None:
    """a session that was lost before the server restarted does not notice the new epoch"""
    new_epoch = Watch.new_epoch

    def noticed(watch: Watch) -> None:
        ended = watch.view.ended
        if ended is not None and ended.kind == "server_restarted":
            new_epoch(watch)

    patch(Watch, "new_epoch", noticed)


@mutant("S34")
def version_not_settled(patch: Patch) -> None:
    """a client goes on in the oldest version when the server has chosen a newer one"""
    patch(Wire, "_settle", lambda wire, version: None)
