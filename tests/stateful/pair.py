"""The production core and the model side by side: the same events, at the same times, and what each client is told."""

import hashlib
from collections import deque
from unittest import mock

from rdzv_proto import limits
from rdzv_proto.auth import EVERYTHING
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    AnyRequest,
    HelloNode,
    HelloWorker,
    Joined,
    ListRuns,
    Members,
    ShowGeneration,
    Welcome,
)
from rdzv_server.core import inside, status
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.events import (
    Broadcast,
    Close,
    Effect,
    Event,
    Lost,
    Opened,
    Received,
    Release,
    Report,
    Send,
)
from rdzv_server.core.invariants import Monitor, check_effects
from rdzv_server.core.settings import Identity, Settings
from tests.stateful.model import Model
from tests.stateful.told import Told, told

EPOCH = 7
KEEP_S = 4.0
"""An ended run is forgotten after this, so that runs are forgotten in these tests as well."""

KEYS_MAX, BYTES_MAX = 5, 120
"""Of one run: small, so that the limits are met."""

ACTION_S = 0.000_013
"""Each event has a time of its own, so that no two deadlines are at one time but by chance of their lengths."""

STEP_S = 0.19
"""Between two ticks without a deadline: just below a stall, since there are many of them."""

LINES_KEPT = 60


class Pair:
    """Both servers, and what is known on the side of the clients."""

    def __init__(self) -> None:
        self.settings = Settings(run_keep_s=KEEP_S)
        identity = Identity("rdzv test", "i", EPOCH, hashlib.sha256(b"key").digest())
        self.core = Coordinator(self.settings, identity)
        self.model = Model(
            epoch=EPOCH,
            grace=self.settings.reconnect_grace_s,
            scale_up=(self.settings.scale_up_delay_s, self.settings.scale_up_wait_s_max),
            keep=KEEP_S,
        )
        self.model.limits = (KEYS_MAX, BYTES_MAX)
        self.monitor = Monitor()
        self.now = 100.0
        self.steps = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        """What was done and said last, for the report of a difference."""
        self.conns = 0
        self.open: set[int] = set()
        """Connections that nobody has cut."""
        self.got: dict[int, list[tuple[int, AnyReply | AnyPush]]] = {}
        """What the core sent in this step, by connection."""
        self.digests: dict[tuple[str, int], bytes] = {}

    # --- events -------------------------------------------------------------------------------

    def connect(self) -> int:
        self.conns += 1
        self.open.add(self.conns)
        self._event(Opened(self.conns, "10.0.0.9", "10.0.0.1"))
        return self.conns

    def send(self, conn: int, request: int, ask: AnyRequest) -> None:
        self._event(Received(conn, request, ask))

    def lose(self, conn: int) -> None:
        self.open.discard(conn)
        self._event(Lost(conn))

    def stall(self, seconds: float) -> None:
        """The server does not run for a while."""
        self.now += seconds
        self.tick()

    def until(self, end: float) -> None:
        """Let time pass."""
        while self.now < end:
            due = self.core.next_deadline()
            step = min(end, self.now + STEP_S)
            self.now = step if due is None else min(step, max(due, self.now))
            self.tick()

    def tick(self) -> None:
        effects = self.core.tick(self.now)
        self.model.enter(self.now)
        lost: list[tuple[str, str] | int] = []
        for effect in effects:
            if isinstance(effect, Report) and effect.event == "node_lost":
                lost.append((effect.run, effect.node))
            elif isinstance(effect, Close):
                lost.append(effect.conn)
        self.model.tick(lost)
        self._compare(f"{self.now:.6f} tick", effects)

    def _event(self, event: Event) -> None:
        self.now += ACTION_S
        line = f"{self.now:.6f} {event}"
        self.lines.append(line)
        with (
            mock.patch.object(limits, "KV_KEYS_PER_RUN_MAX", KEYS_MAX),
            mock.patch.object(limits, "KV_BYTES_PER_RUN_MAX", BYTES_MAX),
        ):
            effects = self.core.handle(self.now, event)
        self.model.enter(self.now)
        match event:
            case Opened(conn):
                self.model.opened(conn)
            case Received(conn, request, ask):
                self.model.received(conn, request, ask)
            case Lost(conn):
                self.model.lost(conn)
            case _:
                raise TypeError(event)
        self._compare(line, effects)

    # --- comparing ----------------------------------------------------------------------------

    def _compare(self, what: str, effects: list[Effect]) -> None:
        self.steps += 1
        cut = self._take(effects)
        said = self._said()
        expected: dict[int, list[tuple[int, Told]]] = {}
        for conn, request, tell in self.model.sent:
            expected.setdefault(conn, []).append((request, tell))
        if said or expected:
            self.lines += [f"    core  {c}: {row}" for c, rows in said.items() for row in rows]
        # In one step only their number and content count, not the order in which they leave.
        same = said == expected or {c: sorted(rows, key=repr) for c, rows in said.items()} == {
            c: sorted(rows, key=repr) for c, rows in expected.items()
        }
        if not same:
            self._differ(what, "what clients are told", said, expected)
        if sorted(cut) != sorted(self.model.cut):
            self._differ(what, "connections cut", cut, self.model.cut)
        self.open -= {conn for conn, _ in cut}
        check_effects(self.core.tables, effects)
        self.monitor.check(self.core.tables)
        seen, shown = self._status(), self.model.status()
        if seen != shown:
            self._differ(what, "status", seen, shown)

    def _take(self, effects: list[Effect]) -> list[tuple[int, str]]:
        """Sort what the core said by connection; returns the connections that it cut."""
        self.got = {}
        cut: list[tuple[int, str]] = []
        for effect in effects:
            match effect:
                case Send(conn, request, message):
                    self.got.setdefault(conn, []).append((request, message))
                case Broadcast(conns, message):
                    for conn in conns:
                        self.got.setdefault(conn, []).append((0, message))
                case Release(to, reply):
                    for conn, request in to:
                        self.got.setdefault(conn, []).append((request, reply))
                case Close(conn, goodbye):
                    cut.append((conn, "" if goodbye is None else ErrorCode(goodbye.code).name))
                case _:
                    pass  # the log
        return cut

    def _said(self) -> dict[int, list[tuple[int, Told]]]:
        said: dict[int, list[tuple[int, Told]]] = {}
        for conn, messages in self.got.items():
            for request, message in messages:
                tell = told(message)
                if tell is not None:
                    said.setdefault(conn, []).append((request, tell))
                if isinstance(message, Joined):
                    self._learn_world(conn, message)
                elif isinstance(message, Welcome):
                    self.model.secrets.setdefault(message.session, message.token)
        return said

    def _learn_world(self, conn: int, message: Joined) -> None:
        session = self.core.tables.connections[conn].session
        assert session is not None
        mine = (session.run_id, session.node_id, message.fence.generation)
        self.model.worker_secrets[message.worker_token] = mine
        digest = self.digests.setdefault((mine[0], mine[2]), message.digest)
        assert digest == message.digest, "S3: two tables for one generation"

    def _status(self) -> dict[str, Told]:
        tables = self.core.tables
        rows: dict[str, Told] = {}
        for run in status.list_runs(tables, EVERYTHING, ListRuns()).runs:
            members = status.members(tables, EVERYTHING, Members(run=run.run)).members
            within = inside.show(tables, EVERYTHING, ShowGeneration(run=run.run))
            ended = run.ended
            rows[run.run] = (
                run.phase,
                None if run.fence is None else run.fence.generation,
                run.participants,
                run.standbys,
                () if ended is None else (ended.kind, ended.node_id, ended.exit_code),
                tuple(
                    sorted(
                        ((m.node_id, m.state, m.group_rank) for m in members), key=lambda r: r[0]
                    )
                ),
                tuple(sorted((b.name, b.round, b.arrived) for b in within.barriers)),
                within.run_keys,
                within.keys,
            )
        return rows

    def _differ(self, what: str, where: str, core: object, model: object) -> None:
        story = "\n".join(self.lines)
        raise AssertionError(
            f"{where} differ after {what}\n  core:  {core}\n  model: {model}\n{story}"
        )


Hello = HelloNode | HelloWorker
