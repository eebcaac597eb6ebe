"""Of the model: membership. Who joins, leaves and is lost; how worlds form and end (DESIGN 6, S1 to S12)."""

from typing import Any

from rdzv_proto.messages import Join, Leave, Policy
from tests.stateful import model_worlds as worlds
from tests.stateful.model_inside import Inside
from tests.stateful.model_keys import NoError
from tests.stateful.model_state import Generation, Run, Session
from tests.stateful.model_worlds import Member, Wait, size_of
from tests.stateful.told import Told

SCALE_UP_MEMORY_S = 600.0
"""Scale-ups of the last ten minutes lengthen the next delay."""


class Runs(Inside):
    """Runs and their members."""

    # --- requests -----------------------------------------------------------------------------

    def join(self, session: Session, request: int, ask: Join) -> Told | None:
        policy = ask.policy
        if size_of(policy, policy.max_nodes) == 0:
            raise NoError("MALFORMED")
        run = self.open_run(session.run)
        if run.closed and self.t - run.since < self.keep:
            raise NoError("RUN_CLOSED")
        if run.over or run.closed:
            self._begin(run, policy)
        elif any(
            getattr(policy, name) != getattr(run.policy, name)
            for name in ("min_nodes", "max_nodes", "node_unit")
        ):
            raise NoError("POLICY_MISMATCH")
        live = run.live
        if live is not None and session.id in live.ranks:
            known = (0, 0) if ask.last is None else (ask.last.epoch, ask.last.generation)
            if known < (self.epoch, live.number):
                return self.assignment(live, session)
            if known > (self.epoch, live.number):
                raise NoError("MALFORMED")
        member = self.member_of(session)
        if member is None:
            run.arrivals += 1
            member = Member(session.node, session.id, run.arrivals)
            run.members[session.node] = member
        rival = self._rival(run, member, ask.rank_hint)
        if live is not None and session.id in live.ranks:
            self.end(run, ("scale_up" if run.announced else "rejoined", session.node, None))
        self._park(run, member, session, request, ask.rank_hint, rival)
        return None

    def _begin(self, run: Run, policy: Policy) -> None:
        """A life of the run begins."""
        self.new_keys(run)
        run.policy, run.over, run.closed = policy, False, False
        run.formed = run.renewals = run.announced = 0
        run.renewed = self.t
        run.enough_since = run.newcomer_first = run.forget_at = run.cannot_return = None
        run.met, run.scale_ups = [], []
        for member in run.members.values():
            member.seat = None

    def _rival(self, run: Run, member: Member, hint: int | None) -> Member | None:
        holder = self._holder(run, hint)
        if holder is None or holder is member:
            return None
        if not holder.connected:
            return holder
        if member.join is None and member.seat is None:
            self._remove(run, member)
        raise NoError("DUPLICATE_RANK")

    @staticmethod
    def _holder(run: Run, hint: int | None) -> Member | None:
        holders = [m for m in run.members.values() if m.hint == hint and m.rival is None]
        return holders[0] if hint is not None and holders else None

    def _park(
        self, run: Run, member: Member, session: Session, request: int, hint: int | None,
        rival: Member | None,
    ) -> None:  # fmt: skip
        assert run.policy is not None
        if member.join is not None:
            self.reply(session, member.join, ("error", "SUPERSEDED"), keep=True)
        else:
            member.since = self.t
            new = member.node not in run.met
            if run.live is None and new and run.renewals < run.policy.max_nodes:
                run.renewals += 1
                run.renewed = self.t
        member.finished = False
        member.join = request
        self._release_hint(run, member)
        member.hint, member.rival = hint, rival
        if rival is not None:
            run.rivals.append(member.node)
        if run.live is not None:
            run.newcomer_last = self.t
        if member.node not in run.joining:
            run.joining.append(member.node)
        run.met.append(member.node)
        session.waiting.append(request)

    def _release_hint(self, run: Run, member: Member) -> None:
        """Whoever waited longest for the hint gets it."""
        if member.node in run.rivals:
            run.rivals.remove(member.node)
        held = member.hint is not None and member.rival is None
        hint, member.hint, member.rival = member.hint, None, None
        if not held:
            return
        heirs = [run.members[n] for n in run.rivals if run.members[n].rival is member]
        for position, heir in enumerate(heirs):
            heir.rival = heirs[0] if position else None
            if position == 0:
                run.rivals.remove(heir.node)
                heir.hint = hint

    def finished(self, session: Session, ask: Any) -> Told:
        run, member = self.runs.get(session.run), self.member_of(session)
        if run is None or member is None:
            raise NoError("NOT_A_MEMBER")
        g = run.generation
        if g is None or (ask.fence.epoch, ask.fence.generation) != (self.epoch, g.number):
            raise NoError("STALE_GENERATION")
        if session.id not in g.ranks:
            raise NoError("NOT_A_MEMBER")
        if member.join is not None:
            raise NoError("STALE_GENERATION")  # it has asked for the next one meanwhile
        self._finish(run, member)
        return ("done", 0)

    def _finish(self, run: Run, member: Member) -> None:
        g = run.generation
        assert g is not None
        if member.finished:
            return
        member.finished = True
        g.finished.append(member.session)
        self._release_hint(run, member)
        self.node_finished(g)
        if g.ended:
            run.cannot_return = run.arrivals
        elif len(g.finished) == len(g.nodes):
            self.end(run, ("finished", "", None))

    def leave(self, session: Session, ask: Leave) -> Told:
        run, member = self.runs.get(session.run), self.member_of(session)
        if run is None or member is None:
            self.session_over(session, ("error", "SESSION_LOST"))
            return ("done", 0)
        g = run.generation
        if ask.kind == "finished" and g is not None and session.id in g.ranks:
            self._finish(run, member)
        self.depart(run, member, (ask.kind, member.node, ask.exit_code))
        return ("done", 0)

    def close(self, session: Session, ask: Any) -> Told:
        if ask.run != session.run or ask.run not in self.runs:
            raise NoError("UNKNOWN_RUN")
        run = self.runs[ask.run]
        if not run.closed:
            self.end(run, ("closed", "", None))
            run.closed, run.since, run.stale_keys, run.forget_at = True, self.t, True, None
            self.refuse(run, list(run.joining), ("error", "RUN_CLOSED"))
        return ("done", 0)

    # --- ends ---------------------------------------------------------------------------------

    def end(self, run: Run, how: Told) -> None:
        """The live generation ends, and everybody in it is told."""
        g = run.live
        if g is None:
            return
        g.ended = run.last_end = how
        if how[0] == "scale_up":
            run.scale_ups.append(self.t)
        run.announced = run.renewals = 0
        run.newcomer_first = run.enough_since = None
        run.renewed = self.t
        if how[0] == "finished":
            self._rest(run)
            self.refuse(run, list(run.joining), ("error", "RUN_FINISHED"))
        else:
            self.generation_over(run, g)
            for node in run.joining:
                run.members[node].since = self.t
            if g.finished:
                run.cannot_return = run.arrivals
        self.tell_all(run)

    def _rest(self, run: Run) -> None:
        run.over, run.since, run.stale_keys = True, self.t, True

    def depart(self, run: Run, member: Member, how: Told) -> None:
        """A member is gone; unless it had finished, its generation ends."""
        session, live = self.sessions[member.session], run.live
        assert run.policy is not None
        stops = how[0] == "failed" and member.seat is not None and run.policy.below_min == "stop"
        gone = ("error", {"lost": "SESSION_LOST", "replaced": "FENCED"}.get(how[0], "NOT_A_MEMBER"))
        if member.join is not None and how[0] == "lost":  # it asks again in its next session
            if member.join in session.waiting:
                session.waiting.remove(member.join)
        elif member.join is not None:
            self.reply(session, member.join, gone, keep=True)
        self._remove(run, member)
        if not member.finished:
            if stops:
                run.cannot_return = run.arrivals
            if live is not None and session.id in live.ranks:
                self.end(run, how)
        self.session_over(session, gone)

    def _remove(self, run: Run, member: Member) -> None:
        self._release_hint(run, member)
        del run.members[member.node]
        run.forget_at = None
        if member.node in run.joining:
            run.joining.remove(member.node)

    def refuse(self, run: Run, nodes: list[str], told: Told) -> None:
        """Waiting joins get this answer."""
        for node in nodes:
            member = run.members[node]
            request, member.join = member.join, None
            run.joining.remove(node)
            self._release_hint(run, member)
            assert request is not None
            self.reply(self.sessions[member.session], request, told, keep=True)

    # --- what members see ---------------------------------------------------------------------

    def assignment(self, g: Generation, session: Session) -> Told:
        return ("joined", g.number, g.ranks[session.id], len(g.nodes))

    def view(self, run: Run) -> Told:
        g = run.generation
        assert g is not None
        if not g.ended:
            return (g.number, run.announced, ())
        waiting = 0 if g.ended[0] == "finished" else max(1, len(run.ready))
        return (g.number, waiting, g.ended)

    def belongs(self, run: Run, session: Session) -> bool:
        g = run.generation
        return g is not None and (session.id in g.ranks or session.generation == g.number)

    def tell_all(self, run: Run) -> None:
        """Everybody who is in the generation sees how it stands."""
        for session in self.sessions.values():
            in_run = self.runs.get(session.run) is run and self.belongs(run, session)
            if in_run and (session.role == "worker" or self.member_of(session) is not None):
                self.push(session, ("view", *self.view(run)))

    # --- coming to rest -----------------------------------------------------------------------

    def settle(self, run: Run) -> None:
        for node in list(run.rivals):
            rival = run.members[node].rival
            if rival is not None and rival.connected:
                self.refuse(run, [node], ("error", "DUPLICATE_RANK"))
        if run.forming:
            self._form_or_refuse(run)
        if run.live is not None:
            self._announce(run, run.live)
        if run.forming and all(m.finished for m in run.members.values()):
            self._rest(run)
        if (run.over or run.closed) and not run.members and run.forget_at is None:
            run.forget_at = max(run.since, run.used) + self.keep

    def _form_or_refuse(self, run: Run) -> None:
        policy = run.policy
        assert policy is not None
        if run.cannot_return is not None and size_of(policy, run.possible) == 0:
            theirs = [n for n in run.joining if run.members[n].order <= run.cannot_return]
            self.refuse(run, theirs, ("error", "RUN_FAILED"))
        self._note_enough(run, policy)
        patience = policy.join_timeout_ms / 1000
        ends = {n: max(run.members[n].since, run.renewed) + patience for n in run.joining}
        first_end = min(ends.values(), default=float("inf"))
        wait = Wait(run.formed == 0, run.enough_since, first_end, run.last_nodes)
        if worlds.may_form(self.t, list(run.members.values()), policy, wait):
            self._form(run, worlds.arranged(list(run.members.values()), policy, run.last_nodes))
            return
        late = [n for n, at in ends.items() if at <= self.t]
        self.refuse(run, late, ("error", "JOIN_TIMEOUT"))
        self._note_enough(run, policy)

    def _note_enough(self, run: Run, policy: Policy) -> None:
        if size_of(policy, len(run.ready)) == 0:
            run.enough_since = None
        elif run.enough_since is None:
            run.enough_since = self.t

    def _form(self, run: Run, chosen: list[Member]) -> None:
        if run.generation is not None:
            self.generation_over(run, run.generation)
        name = next(n for n, r in self.runs.items() if r is run)
        self.numbers[name] = self.numbers.get(name, 0) + 1
        g = run.generation = Generation(
            number=self.numbers[name],
            nodes=[m.node for m in chosen],
            ranks={m.session: rank for rank, m in enumerate(chosen)},
            formed=self.t,
        )
        run.formed += 1
        run.enough_since = run.newcomer_first = run.cannot_return = None
        run.announced = 0
        for member in run.members.values():
            member.seat = g.ranks.get(member.session)
        for member in chosen:
            request, member.join = member.join, None
            assert request is not None
            run.joining.remove(member.node)
            session = self.sessions[member.session]
            self.reply(session, request, self.assignment(g, session), keep=True)

    def _announce(self, run: Run, g: Generation) -> None:
        """Newcomers are announced together, when no further one comes."""
        policy, world = run.policy, len(g.nodes)
        assert policy is not None
        new = sum(m.seat is None for m in run.ready)
        size = size_of(policy, world + new)
        admissible = 0 if g.finished else max(0, size - world)
        if admissible == 0:
            run.newcomer_first = None
            self._set_announced(run, 0)
            return
        if run.newcomer_first is None:
            run.newcomer_first = self.t
        run.scale_ups = [at for at in run.scale_ups if at >= self.t - SCALE_UP_MEMORY_S]
        base, longest = self.scale_up
        delay = base * 2 ** len(run.scale_ups)
        delay = max(base, min(delay, policy.last_call_timeout_ms / 1000))
        at = min(run.newcomer_last + delay, run.newcomer_first + max(longest, delay))
        full = size == size_of(policy, policy.max_nodes)
        if run.announced or full or at <= self.t:
            self._set_announced(run, admissible)

    def _set_announced(self, run: Run, count: int) -> None:
        if count != run.announced:
            run.announced = count
            self.tell_all(run)
