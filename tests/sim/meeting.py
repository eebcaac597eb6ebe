"""What simulated agents do while their workers run: barriers and keys, with what must hold of them.

The ledger knows what all agents asked for and were told, and nothing of the server's inside: each
answer is checked against that.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from rdzv_proto.errors import ErrorCode, info
from rdzv_proto.messages import (
    AnyReply,
    AnyRequest,
    Barrier,
    Done,
    Error,
    Fence,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvDelete,
    KvGet,
    KvNumber,
    KvSet,
    KvSwapped,
    KvValue,
    Released,
)

if TYPE_CHECKING:
    from tests.sim.client import Client
    from tests.sim.world import World

BARRIER_S = 4.0
TURN_S_MAX = 2.0
"""Between two turns of a lane at a barrier."""

KEY_TURN_S_MAX = 4.0
"""The same for keys, of which there are nine lanes to two of barriers: half of all that is played is theirs all the same,
and what a second of two cores is for is faults."""

OF_WORKERS = 3.0
"""Turns of training processes are longer by this: for each of them there is an agent that does the same. Mostly they meet
before a barrier's time is over."""

CALM = 3.0
"""Once nothing fails any more, turns of keys are longer by this: what was lost shows in the first reads, and what is
left to see is that everything comes to rest."""

TOKEN_BYTES = 8
Place = tuple[str, Fence, str]
"""Run, fence and name of a barrier."""
Life = tuple[int, bool]
"""Of a run's keys: see `lives`."""


class MeetingError(AssertionError):
    """A rule of barriers or keys was broken."""


@dataclass
class Space:
    """What was asked of one key space."""

    issued: set[bytes] = field(default_factory=set)
    acknowledged: dict[Life, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    adds: int = 0
    sums: dict[Life, set[int]] = field(default_factory=lambda: defaultdict(set))
    swapped_from: dict[Life, set[int]] = field(default_factory=lambda: defaultdict(set))


class Ledger:
    """What all agents of one history asked and were told."""

    def __init__(self, life: Callable[[str], Life]) -> None:
        self.life = life
        self.tokens = 0
        self.releases = self.failures = self.acknowledged = self.reads = 0
        self._arrivals: dict[Place, dict[int, set[bytes]]] = {}
        self._rounds: dict[tuple[Place, bytes], int] = {}
        self._decisions: dict[tuple[Place, int], AnyReply] = {}
        self._last: dict[tuple[Place, int], int] = {}
        self._untold: Counter[tuple[Place, int]] = Counter()
        """Rounds that a member may have missed since its last one: its session was lost while it waited."""
        self._spaces: dict[tuple[str, Fence | None], Space] = defaultdict(Space)

    def token(self) -> bytes:
        """Unlike any other of this history."""
        self.tokens += 1
        return b"%0*d" % (TOKEN_BYTES, self.tokens)

    def space(self, run: str, fence: Fence | None) -> Space:
        return self._spaces[run, fence]

    def arrives(self, place: Place, rank: int, payload: bytes) -> None:
        self._arrivals.setdefault(place, {}).setdefault(rank, set()).add(payload)

    def decided(self, place: Place, rank: int, members: list[int], reply: AnyReply) -> None:
        """A member was told how a round ended (S13, S14, S15)."""
        if isinstance(reply, Released):
            self.releases += 1
            number = reply.round
            self._released(place, members, reply)
        else:
            assert isinstance(reply, Error), reply
            found = re.search(r", round (\d+)", reply.message)
            if not info(reply.code).definite:
                self._untold[place, rank] += 1
            if reply.code not in (ErrorCode.BARRIER_TIMEOUT, ErrorCode.BARRIER_BROKEN):
                return
            if found is None:
                raise MeetingError(f"S17: no round in {reply.message!r}")
            self.failures += 1
            number = int(found[1])
        first = self._decisions.setdefault((place, number), reply)
        if first != reply:
            raise MeetingError(f"S14: round {number} of {place}: {first} and {reply}")
        last, untold = self._last.get((place, rank), 0), self._untold.pop((place, rank), 0)
        if not last < number <= last + 1 + untold and not self._may_skip(
            place, last, number, reply
        ):
            raise MeetingError(f"S15: rank {rank} got round {number} of {place} after {last}")
        self._last[place, rank] = number

    def _may_skip(self, place: Place, last: int, number: int, reply: AnyReply) -> bool:
        """Where a node has finished, every arrival is a round that is broken at once; who is slow finds the
        older ones forgotten. A round that was released, or waited for, is never skipped."""
        if number < last or not isinstance(reply, Error) or reply.code != ErrorCode.BARRIER_BROKEN:
            return False
        skipped = (self._decisions.get((place, n)) for n in range(last + 1, number))
        known = [one for one in skipped if one is not None]
        broken = (isinstance(one, Error) and one.code == ErrorCode.BARRIER_BROKEN for one in known)
        return number - last > 1 and all(broken)

    def _released(self, place: Place, members: list[int], reply: Released) -> None:
        if len(reply.payloads) != len(members):
            raise MeetingError(f"S13: {len(reply.payloads)} payloads of {members} at {place}")
        for rank, payload in zip(members, reply.payloads, strict=True):
            if payload is None or payload not in self._arrivals.get(place, {}).get(rank, ()):
                raise MeetingError(f"S13: rank {rank} never came to {place} with {payload!r}")
            if self._rounds.setdefault((place, payload), reply.round) != reply.round:
                raise MeetingError(f"S13: one arrival of rank {rank} counted twice at {place}")


class Member(Protocol):
    """Who meets: an agent, or a worker."""

    world: "World"
    run: str
    client: "Client"
    met: dict[Fence, float]
    rng: random.Random

    def runs(self, mine: Joined) -> bool: ...

    def ask(self, message: AnyRequest, done: Callable[[AnyReply], None]) -> None: ...


class Meetings:
    """What one member does in one generation.

    Args:
        of: agents meet agents, workers meet workers.
    """

    def __init__(
        self, agent: Member, mine: Joined, of: Literal["nodes", "workers"] = "nodes"
    ) -> None:
        world = agent.world
        self._of = of
        self._agent, self._mine, self._ledger = agent, mine, world.ledger
        self._rng, self._clock = agent.rng, world.clock
        rng = self._rng
        self.waiting: dict[str, float] = {}
        """Barriers that this member waits at, and since when."""
        self._revisions: dict[Fence | None, int] = {}
        everybody = list(range(mine.world_size))
        self._lane(lambda: self._meet("all", everybody))
        pair = everybody[:2]
        if mine.group_rank in pair:
            self._lane(lambda: self._meet("some", pair))
        elif rng.random() < 0.2:
            self._lane(lambda: self._be_a_stranger(pair), once=True)
        for fence in (mine.fence, None) if of == "nodes" else (mine.fence,):
            for act in (self._append, self._add, self._swap, self._read):
                self._lane(lambda act=act, fence=fence: act(fence), keys=True)  # type: ignore[misc]
        self._lane(self._delete, keys=True)

    def _lane(self, act: Callable[[], None], *, keys: bool = False, once: bool = False) -> None:
        def turn() -> None:
            if not self._agent.runs(self._mine):
                return
            if not self._agent.client.frozen:
                act()
            if not once:
                self._lane(act, keys=keys)

        self._clock.after(self._rng.uniform(0.1, self._turn_s_max(keys=keys)), turn)

    def _turn_s_max(self, *, keys: bool) -> float:
        turn_s_max = KEY_TURN_S_MAX if keys else TURN_S_MAX
        if keys and self._agent.world.calm:
            turn_s_max *= CALM
        return turn_s_max * OF_WORKERS if self._of == "workers" else turn_s_max

    # --- barriers -----------------------------------------------------------------------------

    def _meet(self, name: str, members: list[int]) -> None:
        if name in self.waiting:
            return
        agent, mine, token = self._agent, self._mine, self._ledger.token()
        place = (agent.run, mine.fence, self._called(name))
        self._ledger.arrives(place, mine.group_rank, token)
        self.waiting[name] = self._clock.now

        def told(reply: AnyReply) -> None:
            del self.waiting[name]
            self._ledger.decided(place, mine.group_rank, members, reply)
            if name == "all" and isinstance(reply, Released):
                agent.met.setdefault(mine.fence, self._clock.now)

        subset = members if name == "some" else []
        agent.ask(self._barrier(name, subset, token), told)

    def _be_a_stranger(self, members: list[int]) -> None:
        def told(reply: AnyReply) -> None:
            if not isinstance(reply, Error):
                raise MeetingError(f"S16: a stranger got {reply}")

        self._agent.ask(self._barrier("some", members, b"stranger"), told)

    def _barrier(self, name: str, members: list[int], payload: bytes) -> Barrier:
        count = self._mine.world_size if self._of == "workers" and not members else 0
        return Barrier(
            fence=self._mine.fence, name=self._called(name), of=self._of, members=members, count=count,
            payload=payload, timeout_ms=round(BARRIER_S * 1000),
        )  # fmt: skip

    def _called(self, name: str) -> str:
        return name if self._of == "nodes" else f"{name} workers"

    # --- keys (S23) ---------------------------------------------------------------------------

    def _life(self, fence: Fence | None) -> Life:
        return (0, False) if fence is not None else self._ledger.life(self._agent.run)

    def _append(self, fence: Fence | None) -> None:
        token, life = self._ledger.token(), self._life(fence)
        space = self._ledger.space(self._agent.run, fence)
        space.issued.add(token)

        def told(reply: AnyReply) -> None:
            if isinstance(reply, KvNumber) and self._life(fence) == life:
                space.acknowledged[life].add(token)
                self._ledger.acknowledged += 1

        self._agent.ask(KvAppend(fence=fence, key="log", value=token), told)

    def _read(self, fence: Fence | None) -> None:
        """Each append that was acknowledged is there, none twice, and nothing else."""
        life, space = self._life(fence), self._ledger.space(self._agent.run, fence)
        least = set(space.acknowledged[life])

        def told(reply: AnyReply) -> None:
            nothing = isinstance(reply, Error) and reply.code == ErrorCode.WAIT_TIMEOUT
            if not nothing and not isinstance(reply, KvValue):
                return
            value = reply.value if isinstance(reply, KvValue) else b""
            cuts = range(0, len(value), TOKEN_BYTES)
            found = [value[i : i + TOKEN_BYTES] for i in cuts]
            self._ledger.reads += 1
            if len(set(found)) != len(found):
                raise MeetingError(f"S23: an append to {fence} was done twice")
            if not space.issued.issuperset(found):
                raise MeetingError(f"S23: {fence} holds what nobody appended")
            if self._life(fence) == life and not least.issubset(found):
                raise MeetingError(f"S23: {fence} lost {sorted(least.difference(found))}")

        self._agent.ask(KvGet(fence=fence, key="log"), told)

    def _add(self, fence: Fence | None) -> None:
        life, space = self._life(fence), self._ledger.space(self._agent.run, fence)
        least = len(space.sums[life]) + 1
        space.adds += 1

        def told(reply: AnyReply) -> None:
            if not isinstance(reply, KvNumber) or self._life(fence) != life:
                return
            if not least <= reply.value <= space.adds or reply.value in space.sums[life]:
                raise MeetingError(
                    f"S23: the sum in {fence} is {reply.value}; {least} to {space.adds} are right"
                )
            space.sums[life].add(reply.value)

        self._agent.ask(KvAdd(fence=fence, key="sum", delta=1), told)

    def _swap(self, fence: Fence | None) -> None:
        """From one revision only one swap succeeds, and whoever did it is told so."""
        life, space = self._life(fence), self._ledger.space(self._agent.run, fence)
        token, before = self._ledger.token(), self._revisions.get(fence, 0)

        def told(reply: AnyReply) -> None:
            if not isinstance(reply, KvSwapped):
                return
            self._revisions[fence] = reply.revision
            if not reply.swapped and reply.value == token:
                raise MeetingError(f"S23: a swap in {fence} was done and denied")
            if reply.swapped and self._life(fence) == life:
                if before in space.swapped_from[life]:
                    raise MeetingError(f"S23: two swaps in {fence} from revision {before}")
                space.swapped_from[life].add(before)

        ask = KvCas(fence=fence, key="swap", value=token, revision=before)
        self._agent.ask(ask, told)

    def _delete(self) -> None:
        """A key of its own is set and deleted: it was there, however often that is asked again."""
        fence, key = self._mine.fence, self._ledger.token().decode()

        def deleted(reply: AnyReply) -> None:
            if isinstance(reply, KvNumber) and reply.value != 1:
                raise MeetingError(f"S23: the key {key} of {fence} was deleted {reply.value} times")

        def there(reply: AnyReply) -> None:
            if isinstance(reply, Done):
                self._agent.ask(KvDelete(fence=fence, keys=[key]), deleted)

        self._agent.ask(KvSet(fence=fence, key=key, value=b"1"), there)
