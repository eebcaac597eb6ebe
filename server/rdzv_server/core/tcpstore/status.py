"""What tools see of a generation's store: who is connected, and which unique ids are on their way.

Ranks are known as far as keys, or process ids that the agents reported, tell them. A process id is
only meant together with the host it was seen from, and counts for nobody if two ranks claim it. No
value is ever shown.
"""

from collections.abc import Iterable

import msgspec

from rdzv_proto import limits
from rdzv_proto.messages import CommunicatorStatus, StoreStatus
from rdzv_server.core import words
from rdzv_server.core.model import Generation, Run
from rdzv_server.core.tables import Tables
from rdzv_server.core.tcpstore.exchanges import Exchange
from rdzv_server.core.tcpstore.model import StoreClient

COMMUNICATORS_SHOWN_MAX = 256
"""Those that somebody waits for come first."""

ASSIGNED_RANKS = "torchelastic/assigned_ranks/{}"
"""Where torch's agents exchange ranks: `[first rank, world size, …]` for each node (TORCH.md 6)."""

_ASSIGNED = msgspec.json.Decoder(list[int])


def show(tables: Tables, run: Run) -> StoreStatus | None:
    """The store of the run's live generation; None if the server serves none."""
    generation = run.live
    store = None if generation is None else generation.store
    if generation is None or store is None:
        return None
    who = _Who(tables, generation)
    ranks = {who.rank(client) for client in store.clients.values()}
    known = sorted(rank for rank in ranks if rank is not None)
    world = who.world_size
    missing = []
    if None not in ranks:  # one that is not known may be any of the others
        missing = [who.shown(rank) for rank in _absent(world, set(known))]
    return StoreStatus(
        port=store.port,
        clients=len(store.clients),
        world_size=world,
        ranks=known,
        missing=missing,
        keys=len(store.keys),
        value_bytes=store.keys.bytes_used,
    )


def communicators(tables: Tables, run: Run) -> list[CommunicatorStatus]:
    """Unique ids that passed through the store of the live generation, unfinished ones first."""
    generation = run.live
    store = None if generation is None else generation.store
    if generation is None or store is None:
        return []
    who = _Who(tables, generation)
    rows = [_communicator(tables, who, exchange) for exchange in store.exchanges.by_key.values()]
    rows.sort(key=lambda row: row.state == "spent")
    return rows[:COMMUNICATORS_SHOWN_MAX]


def _communicator(
    tables: Tables, who: "_Who", exchange: Exchange[StoreClient]
) -> CommunicatorStatus:
    needed = 2 if exchange.pair is not None else who.world_size if exchange.of_all else 0
    have = [exchange.minter, *exchange.fetched]
    ranks = {who.rank(client) for client in have}
    missing = []
    if exchange.of_all and None not in ranks:
        missing = [who.shown(rank) for rank in _absent(needed, {r for r in ranks if r is not None})]
    fetched = len({who.process(client) for client in exchange.fetched})
    return CommunicatorStatus(
        name=_text(exchange.key),
        via="store",
        state="spent" if needed and fetched + 1 >= needed else "published",
        attempt=exchange.attempt,
        minter=who.of(exchange.minter)[: limits.NAME_CHARS_MAX],
        fetched=fetched,
        needed=needed,
        missing=missing,
        age_ms=max(0, round((tables.t - exchange.published_at) * 1000)),
    )


def _absent(world: int, here: set[int]) -> Iterable[int]:
    """The first ranks of a world that are not here, as many as are shown."""
    found = (rank for rank in range(world) if rank not in here)
    return [rank for rank, _ in zip(found, range(words.NAMES_SHOWN_MAX), strict=False)]


def _text(key: bytes) -> str:
    """A key for people, without what a terminal would obey."""
    text = key.decode("utf-8", "replace").removeprefix("/")
    return "".join(c if c.isprintable() else "?" for c in text)[: limits.TEXT_CHARS_MAX]


class _Who:
    """Which rank a client is, and on which node a rank runs, as far as that can be told."""

    def __init__(self, tables: Tables, generation: Generation) -> None:
        self._generation = generation
        self._by_process: dict[tuple[str, int], set[int]] = {}
        self._node_of: dict[int, str] = {}
        for session_id, workers in generation.worker_pids.items():
            place = generation.participants[generation.rank_of[session_id]]
            session = tables.sessions.get(session_id)
            for pid, rank in workers.items():
                self._node_of[rank] = place.name
                if session is not None:
                    self._by_process.setdefault((session.peer_host, pid), set()).add(rank)
        clients = generation.store.clients.values() if generation.store is not None else ()
        for client in clients:
            if client.rank is not None and client.pid is not None:
                process = (client.peer_host, client.pid)
                self._by_process.setdefault(process, set()).add(client.rank)
        self.world_size = self._world_size()

    def rank(self, client: StoreClient) -> int | None:
        """Global rank, or None."""
        if client.rank is not None:
            return client.rank
        if client.pid is None:
            return None
        ranks = self._by_process.get((client.peer_host, client.pid), set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def process(self, client: StoreClient) -> object:
        """The same for all connections of one process."""
        rank = self.rank(client)
        if rank is not None:
            return rank
        return (client.peer_host, client.conn if client.pid is None else client.pid, None)

    def of(self, client: StoreClient) -> str:
        """A client for people."""
        rank = self.rank(client)
        if rank is not None:
            return self.shown(rank)
        pid = "" if client.pid is None else f"process {client.pid} at "
        return f"{pid}{client.peer_host}"

    def shown(self, rank: int) -> str:
        """`rank 3 on node-1`."""
        node = self._node_of.get(rank)
        text = f"rank {rank}" if node is None else f"rank {rank} on {node}"
        return text[: limits.NAME_CHARS_MAX]

    def _world_size(self) -> int:
        """Workers of the generation; 0 if nobody has told yet."""
        generation = self._generation
        if generation.worker_world:
            return generation.worker_world
        value = generation.kv.get((ASSIGNED_RANKS.format(0),))
        if value:
            try:
                return max(0, min(_ASSIGNED.decode(value[0].value)[1], limits.RANKS_MAX))
            except (msgspec.DecodeError, IndexError):
                pass  # somebody else's key of that name
        if len(generation.worker_pids) < len(generation.participants):
            return 0
        return sum(len(workers) for workers in generation.worker_pids.values())
