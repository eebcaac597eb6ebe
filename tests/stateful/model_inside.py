"""Of the model: what goes on inside a run: requests for keys and barriers, and how those that wait end."""

from typing import Any

from rdzv_proto.messages import Barrier as Meet
from tests.stateful import model_keys as kv
from tests.stateful.model_barriers import (
    Arrival,
    Barrier,
    Round,
    Terms,
    missing,
    released,
    takes_part,
)
from tests.stateful.model_keys import NoError, Space, Waiting
from tests.stateful.model_state import Generation, Run, Session, State
from tests.stateful.told import Told


class Inside(State):
    """Keys and barriers."""

    epoch = 0

    # --- keys ---------------------------------------------------------------------------------

    def keys_request(self, session: Session, request: int, ask: Any) -> Told | None:
        reads, writes = isinstance(ask, kv.READS), isinstance(ask, kv.WRITES)
        if ask.fence is not None:
            run, g = self.generation_of(session, ask.fence, self.epoch)
            space = g.keys
        else:
            if session.run not in self.runs and not writes and not (reads and ask.timeout_ms):
                raise NoError("UNKNOWN_RUN")  # only who writes or waits makes a run
            run = self.use_run(session.run)
            space = run.keys
        if reads:
            return self._read(session, request, space, ask)
        if not writes:
            return kv.look(space, ask)
        if ask.fence is None:
            self.new_keys(run)
        spaces = [run.keys, *([] if run.generation is None else [run.generation.keys])]
        answer = kv.write(spaces, space, ask, self.limits)
        self._wake(space)
        return answer

    def new_keys(self, run: Run) -> None:
        """Keys of an earlier life of the run go."""
        if run.stale_keys:
            run.stale_keys = False
            kv.delete(run.keys, list(run.keys.values))

    def _read(self, session: Session, request: int, space: Space, ask: Any) -> Told | None:
        answer = kv.found(space, ask)
        if answer is not None:
            return answer
        if not ask.timeout_ms:
            raise NoError("WAIT_TIMEOUT", kv.missing(space, ask))
        if request not in session.waiting:
            session.waiting.append(request)
            until = self.t + ask.timeout_ms / 1000
            space.waiting.append(Waiting(session.id, request, ask, until))
        return None

    def _wake(self, space: Space) -> None:
        for wait in list(space.waiting):
            answer = kv.found(space, wait.ask)
            if answer is not None:
                space.waiting.remove(wait)
                self.reply(self.sessions[wait.session], wait.request, answer, keep=False)

    def wait_over(self, space: Space, wait: Waiting) -> None:
        space.waiting.remove(wait)
        told = ("error", "WAIT_TIMEOUT", kv.missing(space, wait.ask))
        self.reply(self.sessions[wait.session], wait.request, told, keep=False)

    # --- barriers -----------------------------------------------------------------------------

    def meet(self, session: Session, request: int, ask: Meet) -> Told | None:
        g: Generation | None = None
        if ask.of == "count":
            if ask.fence is not None or ask.members or not ask.count:
                raise NoError("MALFORMED")
            barriers = self.use_run(session.run).barriers
            terms: Terms = ("count", ask.count, None)
            me = session.id
        else:
            if ask.fence is None:
                raise NoError("MALFORMED")
            _, g = self.generation_of(session, ask.fence, self.epoch)
            barriers = g.barriers
            terms, me = self._who_meets(session, g, ask)
        barrier = barriers.setdefault(ask.name, Barrier())
        if ask.of == "count":
            if ask.round not in (None, barrier.number):
                raise NoError("BAD_ROUND")
        else:
            known = self._decided(barrier, me, ask.round)
            if known is not None:
                return known
        self._arrive(barrier, g, session, request, ask, terms, me)
        return None

    def _who_meets(self, session: Session, g: Generation, ask: Meet) -> tuple[Terms, int]:
        if session.role + "s" != {"nodes": "nodes", "workers": "workers"}[ask.of]:
            raise NoError("NOT_A_MEMBER")
        me = session.rank if ask.of == "workers" else g.ranks[session.id]
        world = len(g.nodes) if ask.of == "nodes" else ask.count
        if ask.of == "nodes" and any(rank >= world for rank in ask.members):
            raise NoError("MALFORMED")
        if not ask.members and not world:
            raise NoError("MALFORMED")
        ranks = tuple(sorted(set(ask.members))) or None
        terms: Terms = (ask.of, world if ranks is None else len(ranks), ranks)
        if not takes_part(terms, me):
            raise NoError("NOT_A_MEMBER")
        return terms, me

    def _decided(self, barrier: Barrier, me: int, number: int | None) -> Told | None:
        """What was decided on the caller's round, if it is not the open one."""
        if number is None:
            owed = barrier.owed(me)
            if owed is None:
                return None
            number, decision = owed
        elif number == barrier.number:
            return None
        else:
            kept = [d for n, terms, d in barrier.past if n == number and takes_part(terms, me)]
            if not kept:
                raise NoError("BAD_ROUND")
            decision = kept[0]
        barrier.had[me] = max(number, barrier.had.get(me, 0))
        return decision

    def _arrive(
        self, barrier: Barrier, g: Generation | None, session: Session, request: int, ask: Meet,
        terms: Terms, me: int,
    ) -> None:  # fmt: skip
        round_ = barrier.open
        if round_ is None:
            round_ = barrier.open = Round(terms, self.t + ask.timeout_ms / 1000)
        elif not takes_part(round_.terms, me):
            raise NoError("NOT_A_MEMBER")
        before = round_.came.pop(me, None)
        if before is not None:
            other = self.sessions[before.session]
            if other is not session and other.gone_since is None:
                round_.came[me] = before
                raise NoError("DUPLICATE_RANK")
            self.reply(other, before.request, ("error", "SUPERSEDED"), keep=True)
        session.waiting.append(request)
        round_.came[me] = Arrival(session.id, request, ask.payload, ask.vote)
        if terms != round_.terms:
            self.decide(barrier, ("error", "BARRIER_MISMATCH"))
        elif g is not None and self._needs_finished(g, round_):
            self.decide(barrier, ("error", "BARRIER_BROKEN"))
        elif len(round_.came) == round_.terms[1]:
            self.decide(barrier, released(barrier.number, round_))

    def decide(self, barrier: Barrier, decision: Told) -> None:
        for arrival in barrier.decide(decision):
            self.reply(self.sessions[arrival.session], arrival.request, decision, keep=True)

    def _needs_finished(self, g: Generation, round_: Round) -> bool:
        done = [g.ranks[session] for session in g.finished]
        return round_.terms[0] == "nodes" and any(takes_part(round_.terms, rank) for rank in done)

    def node_finished(self, g: Generation) -> None:
        for barrier in g.barriers.values():
            if barrier.open is not None and self._needs_finished(g, barrier.open):
                self.decide(barrier, ("error", "BARRIER_BROKEN"))

    def round_over(self, barrier: Barrier) -> None:
        assert barrier.open is not None
        more = () if barrier.open.terms[0] == "count" else (missing(barrier.open),)
        self.decide(barrier, ("error", "BARRIER_TIMEOUT", *more))

    # --- ends ---------------------------------------------------------------------------------

    def generation_over(self, run: Run, g: Generation) -> None:
        """Whoever waits for something of it is told, and it is empty from now on."""
        stale = ("error", "STALE_GENERATION")
        for wait in g.keys.waiting:
            self.reply(self.sessions[wait.session], wait.request, stale, keep=False)
        g.keys.waiting = []
        for barrier in g.barriers.values():
            if barrier.open is not None:
                came, barrier.open = barrier.open.came, None
                for arrival in came.values():
                    self.reply(self.sessions[arrival.session], arrival.request, stale, keep=True)
        kv.delete(g.keys, list(g.keys.values))

    def session_over(self, session: Session, told: Told) -> None:
        """Nothing waits for this session any more."""
        run = self.runs.get(session.run)
        if run is not None:
            for barrier in run.barriers.values():
                here = {} if barrier.open is None else barrier.open.came
                if session.id in here:
                    del here[session.id]
                    barrier.open = barrier.open if here else None
            g = run.generation
            for barrier in [] if g is None else g.barriers.values():
                came = [] if barrier.open is None else list(barrier.open.came.values())
                if any(a.session == session.id for a in came):
                    self.decide(barrier, ("error", "BARRIER_BROKEN"))
            for space in (run.keys, *([] if g is None else [g.keys])):
                space.waiting = [w for w in space.waiting if w.session != session.id]
        for request in list(session.waiting):
            self.reply(session, request, told, keep=False)
